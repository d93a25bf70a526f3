#!/bin/bash
# The classic.   belljar run examples/fizzbuzz.sh -- 15
for ((i = 1; i <= ${1:-20}; i++)); do
  word=
  ((i % 3)) || word+=Fizz
  ((i % 5)) || word+=Buzz
  echo "${word:-$i}"
done
