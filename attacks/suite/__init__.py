"""Belljar's attack suite: hostile programs, canaries on the host that tell whether one got out, and the judge."""
