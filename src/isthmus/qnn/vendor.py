"""Properties of graphs in Qualcomm's own HTP library, for the backend that calls it."""

from isthmus.backends.vendor import figures as _figures
from isthmus.backends.vendor import options as _options

Figures = _figures.VendorFigures
GraphProperty = _options.VendorGraphProperty

FIGURES = GraphProperty.FIGURES
FINALIZE_SECONDS = GraphProperty.FINALIZE_SECONDS
