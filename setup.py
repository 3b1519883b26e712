"""What setup.cfg cannot say: the wheel has the programs and their files in sluice/root/, as a checkout has them at its
root (sluice/places.py).
"""

from __future__ import annotations

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["sluice*"]), "sluice.root"],
    package_dir={"sluice.root": "."},
    script_name="setup.py",
)
