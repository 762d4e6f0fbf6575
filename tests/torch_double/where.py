# SPDX-License-Identifier: Apache-2.0
"""Where PyTorch is, if it is the version that the device is written for."""
import importlib.util
import sys
from importlib import metadata
from pathlib import Path

found = importlib.util.find_spec("torch")
if found is None or not metadata.version("torch").startswith("2.13."):
    sys.exit("no PyTorch 2.13")
print(Path(found.origin).parent)
