// Large factorials, digit by digit.   belljar run examples/factorial.cpp -- 50
#include <algorithm>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

int main(int argc, char **argv)
{
    const int n = argc > 1 ? std::stoi(argv[1]) : 30;
    std::vector<int> digits{1};
    for (int factor = 2; factor <= n; ++factor) {
        int carry = 0;
        for (int &digit : digits) {
            carry += digit * factor;
            digit = carry % 10;
            carry /= 10;
        }
        for (; carry > 0; carry /= 10)
            digits.push_back(carry % 10);
    }
    std::cout << n << "! = ";
    std::ranges::for_each(digits.rbegin(), digits.rend(), [](int digit) { std::cout << digit; });
    std::cout << "\nits digits sum to " << std::accumulate(digits.begin(), digits.end(), 0) << '\n';
}
