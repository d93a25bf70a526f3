// A chain of goroutines, each of which lets pass what its prime does not divide.   belljar run examples/sieve.go -- 20
package main

import (
	"fmt"
	"os"
	"strconv"
)

func count(out chan<- int) {
	for n := 2; ; n++ {
		out <- n
	}
}

func filter(in <-chan int, out chan<- int, prime int) {
	for n := range in {
		if n%prime != 0 {
			out <- n
		}
	}
}

func main() {
	wanted := 10
	if len(os.Args) > 1 {
		wanted, _ = strconv.Atoi(os.Args[1])
	}
	numbers, sum := make(chan int), 0
	go count(numbers)
	for i := 0; i < wanted; i++ {
		prime := <-numbers
		fmt.Print(prime, " ")
		sum += prime
		rest := make(chan int)
		go filter(numbers, rest, prime)
		numbers = rest
	}
	fmt.Printf("\nthe first %d primes sum to %d\n", wanted, sum)
}
