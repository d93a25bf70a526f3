//! Times of day as text and back.

pub use belljar::clock::{now, now_millis};

/// Milliseconds since 1970 as RFC 3339 in UTC.
pub fn format(millis: u64) -> String {
    belljar::clock::format(millis.into())
}

/// The last that RFC 3339 has words for: its years have four digits. In seconds.
pub const LAST_SECOND: u64 = 253_402_300_799;

/// RFC 3339 as milliseconds since 1970, or `None` where it is no such thing or before that.
pub fn parse(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        digits
            .bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| digits.parse().ok())?
    };
    let sign =
        |at: usize, accepted: &[u8]| accepted.contains(text.as_bytes().get(at)?).then_some(());
    sign(4, b"-")?;
    sign(7, b"-")?;
    sign(10, b"Tt ")?;
    sign(13, b":")?;
    sign(16, b":")?;
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1..=12).contains(&month)
        || !(1..=length(year, month)).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    let rest = text.get(19..)?;
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?),
        None => ("", rest),
    };
    let millis: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let offset = match zone.as_bytes() {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let part = |from: usize, to: usize| zone.get(from..to)?.parse::<u8>().ok();
            let minutes = i64::from(part(1, 3)?) * 60 + i64::from(part(4, 6)?);
            if *sign == b'+' { minutes } else { -minutes }
        }
        _ => return None,
    };
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + (minute - offset) * 60 + second;
    u64::try_from(seconds * 1000 + millis).ok()
}

/// How many days a month has.
fn length(year: i64, month: i64) -> i64 {
    let after = match month {
        12 => days(year + 1, 1, 1),
        _ => days(year, month + 1, 1),
    };
    after - days(year, month, 1)
}

/// Days from 1970-01-01. Counts in years that begin in March, so leap days come last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// They come in queries, from anybody.
        #[test]
        fn fuzz_times(text: String, like in "[0-9]{3,5}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{0,30})?([zZ]|[+-][0-9+]{2}:[0-9]{2})?") {
            for text in [text, like] {
                if let Some(millis) = parse(&text) {
                    prop_assert_eq!(parse(&format(millis)), Some(millis));
                }
            }
        }
    }

    #[test]
    fn times_come_back() {
        for millis in [0, 951_782_400_000, 1_767_225_599_999, 4_102_444_800_123] {
            assert_eq!(parse(&format(millis)), Some(millis));
        }
        assert_eq!(parse("1970-01-01T01:00:00+01:00"), Some(0));
        assert_eq!(format(LAST_SECOND * 1000), "9999-12-31T23:59:59.000Z");
        assert!(parse("2024-02-29T00:00:00Z").is_some());
        assert!(parse("2026-12-31T00:00:00Z").is_some());
        assert_eq!(
            parse("2026-01-02T03:04:05.5Z"),
            parse("2026-01-02T03:04:05.500Z")
        );
        for bad in [
            "",
            "now",
            "2026-01-02",
            "2026-13-02T03:04:05Z",
            "2026-02-31T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-04-31T00:00:00Z",
            "2026-12-32T00:00:00Z",
            "2026-01-02T03:04:05",
            "2026-01-02T03:04:05.Q",
            "1969-01-01T00:00:00Z",
            "2026-01-02T03:04:05+1:00",
            "é026-01-02T03:04:05Z",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
