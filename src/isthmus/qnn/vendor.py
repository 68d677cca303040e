"""Properties of graphs in Qualcomm's own HTP library, for the backend that calls it."""

from isthmus.backends.vendor import options as _options
from isthmus.graph import figures as _figures

Figures = _figures.GraphFigures
GraphProperty = _options.VendorGraphProperty

FIGURES = GraphProperty.FIGURES
FINALIZE_SECONDS = GraphProperty.FINALIZE_SECONDS
