"""Package folders; everything else about the package stands in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

# Folders of the checkout that are installed inside the package: `layoutconv` has links to them.
LINKED = "kernels", "benchmarks"

packages = find_packages(include=["layoutconv", "layoutconv.*"])
folders = {"": "."}  # a plain path for editors and type checkers, not an import hook
packages.append("layoutconv.benchmarks")  # scripts that import each other, not modules of a package
for name in LINKED:
    if not (Path("layoutconv") / name).is_dir():  # a checkout without symbolic links
        folders[f"layoutconv.{name}"] = name
        packages += [f"layoutconv.{name}.{inner}" for inner in find_packages(name)]
        packages.append(f"layoutconv.{name}")

setup(packages=sorted(set(packages)), package_dir=folders)
