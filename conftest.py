"""Makes ``layoutconv.kernels`` the folder ``kernels`` of this checkout, installed or not."""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_folder = Path(__file__).parent / "kernels"
if (_folder / "__init__.py").exists():
    spec = spec_from_file_location(
        "layoutconv.kernels", _folder / "__init__.py", submodule_search_locations=[str(_folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["layoutconv.kernels"] = module
    spec.loader.exec_module(module)

# Workers side by side get a thread each: with more, torch's threads wait for one another's.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
