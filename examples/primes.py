"""Primes up to a limit, by the sieve of Eratosthenes.   belljar run examples/primes.py -- 200"""
import sys

limit = int(sys.argv[1]) if len(sys.argv) > 1 else 100
sieve = bytearray([1]) * (limit + 1)
sieve[0:2] = b"\0\0"
for n in range(2, int(limit**0.5) + 1):
    if sieve[n]:
        sieve[n * n :: n] = bytes(len(range(n * n, limit + 1, n)))

primes = [n for n, is_prime in enumerate(sieve) if is_prime]
print(*primes)
print(f"{len(primes)} primes up to {limit}")
