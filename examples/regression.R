# A line through noisy points.   belljar run examples/regression.R -- 200
args <- commandArgs(trailingOnly = TRUE)
n <- if (length(args) > 0) as.integer(args[1]) else 50

x <- seq_len(n)
y <- 3 * x + 7 + sin(x)
fit <- lm(y ~ x)
cat(sprintf("y = %.2f x + %.2f, R squared %.4f, from %d points\n",
            coef(fit)[["x"]], coef(fit)[["(Intercept)"]], summary(fit)$r.squared, n))
