<?php
// A month on one page.   belljar run examples/calendar.php -- 2024 2
$year = (int) ($argv[1] ?? 2025);
$month = (int) ($argv[2] ?? 10);
$first = new DateTimeImmutable(sprintf('%04d-%02d-01', $year, $month));
$days = (int) $first->format('t');

echo $first->format('F Y'), "\nMo Tu We Th Fr Sa Su\n";
echo str_repeat('   ', (int) $first->format('N') - 1);
for ($day = 1; $day <= $days; $day++) {
    $end = $first->modify('+' . ($day - 1) . ' days')->format('N') === '7' || $day === $days;
    printf('%2d%s', $day, $end ? "\n" : ' ');
}
echo "$days days\n";
