# Made from `_async` by `scripts/generate.py`. Do not edit.
"""The package's face, for code that blocks. Made from `_async`."""
