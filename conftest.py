"""Settings of test runs."""

import os

# Workers side by side get a thread each: with more, torch's threads wait for one another's.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
