# Groups words that are made of the same letters.   belljar run examples/anagrams.pl -- listen silent enlist google
use strict;
use warnings;

my @words = @ARGV ? @ARGV : qw(listen silent enlist stressed desserts rust belljar);
my %groups;
push @{ $groups{ join '', sort split //, lc } }, $_ for @words;

my @anagrams = sort { $a->[0] cmp $b->[0] } grep { @$_ > 1 } values %groups;
print join(' ', @$_), "\n" for @anagrams;
printf "%d groups among %d words\n", scalar @anagrams, scalar @words;
