"""The oracle and the strategies are modules next to the tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
