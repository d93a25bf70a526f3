/* The Mandelbrot set in letters.   belljar run examples/mandelbrot.c */
#include <complex.h>
#include <stdio.h>

static int steps(double complex c)
{
    double complex z = 0;
    int n = 0;
    while (n < 100 && cabs(z) <= 2) {
        z = z * z + c;
        n++;
    }
    return n;
}

int main(void)
{
    int inside = 0;
    for (int row = -10; row <= 10; row++) {
        for (int column = -40; column <= 20; column++) {
            int n = steps(column / 20.0 + row / 10.0 * I);
            inside += n == 100;
            putchar(n == 100 ? '#' : n > 8 ? '+' : n > 4 ? '.' : ' ');
        }
        putchar('\n');
    }
    printf("%d points of 1281 are inside\n", inside);
}
