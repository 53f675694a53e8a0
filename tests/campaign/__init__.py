"""Random problems over all that the documents promise, each compared with float64.

    python -m tests.campaign dense --count 10000 --minutes 8 --workers 16 --out dense.jsonl

A *problem* is a frozen dataclass that a seed determines: ``dense``, ``sparse`` and ``views`` draw
them, and run them through the public functions. Its *kind* is what kernels are compiled for;
neighbouring seeds share one, of other sizes and numbers. What should come out is computed by plain
torch in float64, tap by tap, from the definition of a convolution, and shares no code with the
library. Half of what is drawn are small integers, whose sums are exact in any order: results must
then be equal to the last bit. The rest is within limits that ``limits`` writes down.

Workers are processes that the parent hands seeds, so that one that dies, or never answers, is a
finding with its seed; results are lines of JSON that add up over runs. ``__main__`` has the
commands, and CONTRIBUTING.md says how they are used.

Nothing here needs pytest or hypothesis: it runs on a machine that has torch and the library.
"""

from importlib.util import find_spec

if find_spec("layoutconv.kernels") is None:  # a checkout that is not installed
    import conftest  # noqa: F401
