"""Makes ``layoutconv.kernels`` importable from a checkout that is not installed."""

import os
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

if find_spec("layoutconv.kernels") is None:
    folder = Path(__file__).parent / "kernels"
    spec = spec_from_file_location(
        "layoutconv.kernels", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["layoutconv.kernels"] = module
    spec.loader.exec_module(module)

# Workers side by side get a thread each: with more, torch's threads wait for one another's.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
