"""The package's face, for code that awaits. `_sync` is made from it by `scripts/generate.py`: change this one, then run that."""
