"""Files in tiles are made from small files that the frontends' tests know how to build."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "frontends" / "tflite"))
