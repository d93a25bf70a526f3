"""The version of this package, which is that of the program that comes with it."""

VERSION = "0.1.0"
