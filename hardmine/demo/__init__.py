"""The demo: `python cli.py demo`, on real photographs that scikit-image's wheel carries. Nothing is downloaded."""

from hardmine.demo.run import demo
from hardmine.demo.settings import Settings

__all__ = ["Settings", "demo"]
