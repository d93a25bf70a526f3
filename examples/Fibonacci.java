// Fibonacci numbers that outgrow every primitive type.   belljar run examples/Fibonacci.java -- 200
import java.math.BigInteger;
import java.util.stream.Stream;

public class Fibonacci {
    record Pair(BigInteger a, BigInteger b) {
        Pair next() {
            return new Pair(b, a.add(b));
        }
    }

    public static void main(String[] args) {
        int n = args.length > 0 ? Integer.parseInt(args[0]) : 100;
        Pair last = Stream.iterate(new Pair(BigInteger.ZERO, BigInteger.ONE), Pair::next).skip(n).findFirst().orElseThrow();
        System.out.printf("fibonacci(%d) = %s%n", n, last.a());
    }
}
