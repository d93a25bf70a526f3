//! A number as a person or a program writes it, before anybody checked it.
//!
//! The letters after a number, in one place:
//!
//! | unit | `ms` `s` `m` `h` `d` `w` | `b` | `k` `m` `g` | `kb` `mb` `gb` | `kib` `mib` `gib` |
//! |---|---|---|---|---|---|
//! | time | 1 ms, 1 s, 1 min, 1 h, 1 day, 1 week | | | | |
//! | output | | bytes | powers of 1000 | powers of 1000 | powers of 1024 |
//! | memory, disk | | bytes | powers of 1024 | powers of 1000 | powers of 1024 |
//!
//! So `--max-output 100k` is 100 000 bytes and `--memory 512m` is 512 MiB, as people expect of each. Upper and lower case
//! are the same. Text needs a unit; a JSON or TOML number is in the unit that its field's name says.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// What a limit counts, and so which letters may follow a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Milliseconds,
    /// Bytes of memory or disk: `k`, `m`, `g` are powers of 1024.
    BinaryBytes,
    /// Bytes of output: `k`, `m`, `g` are powers of 1000.
    DecimalBytes,
    /// Thousandths of a core; written as cores, like `0.5`.
    Cores,
    /// Things: no unit.
    Count,
}

impl Unit {
    /// Letters and the factor they stand for.
    fn suffixes(self) -> &'static [(&'static str, u64)] {
        const MILLISECONDS: &[(&str, u64)] = &[
            ("ms", 1),
            ("s", 1000),
            ("m", 60_000),
            ("h", 3_600_000),
            ("d", 86_400_000),
            ("w", 604_800_000),
        ];
        const BINARY: &[(&str, u64)] = &[
            ("b", 1),
            ("k", 1 << 10),
            ("m", 1 << 20),
            ("g", 1 << 30),
            ("kb", 1000),
            ("mb", 1_000_000),
            ("gb", 1_000_000_000),
            ("kib", 1 << 10),
            ("mib", 1 << 20),
            ("gib", 1 << 30),
        ];
        const DECIMAL: &[(&str, u64)] = &[
            ("b", 1),
            ("k", 1000),
            ("m", 1_000_000),
            ("g", 1_000_000_000),
            ("kb", 1000),
            ("mb", 1_000_000),
            ("gb", 1_000_000_000),
            ("kib", 1 << 10),
            ("mib", 1 << 20),
            ("gib", 1 << 30),
        ];
        match self {
            Self::Milliseconds => MILLISECONDS,
            Self::BinaryBytes => BINARY,
            Self::DecimalBytes => DECIMAL,
            Self::Cores => &[("", 1000)],
            Self::Count => &[("", 1)],
        }
    }

    /// What kind of text is accepted, for a message.
    pub(crate) fn accepted(self) -> &'static str {
        match self {
            Self::Milliseconds => "a time with a unit (ms, s, m, h, d, w)",
            Self::BinaryBytes | Self::DecimalBytes => {
                "a size with a unit (b, k, m, g, kb, mb, gb, kib, mib, gib)"
            }
            Self::Cores => "a number of cores",
            Self::Count => "a whole number without a unit",
        }
    }

    /// A value as a person would write it.
    pub fn text(self, value: u64) -> String {
        match self {
            Self::Cores => {
                let text = format!("{}.{:03}", value / 1000, value % 1000);
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            }
            Self::Count => value.to_string(),
            Self::Milliseconds | Self::BinaryBytes | Self::DecimalBytes => {
                // The last of equals, so that 512 MiB reads `512mib`, which means the same everywhere.
                let fits = |factor: u64| value >= factor && value.is_multiple_of(factor);
                let best = self
                    .suffixes()
                    .iter()
                    .filter(|(_, factor)| fits(*factor))
                    .max_by_key(|(_, factor)| *factor);
                match best {
                    Some((suffix, factor)) => format!("{}{suffix}", value / factor),
                    None => value.to_string(),
                }
            }
        }
    }
}

/// A limit as it was given.
#[derive(Debug, Clone, PartialEq)]
pub enum Amount {
    Integer(i128),
    Float(f64),
    Text(String),
}

impl Amount {
    /// The value in the unit's base (milliseconds, bytes, thousandths of a core, things), or `None` where it is no such
    /// thing. Never zero by rounding: what is below one base unit is `None` too.
    pub fn value(&self, unit: Unit) -> Option<u64> {
        let value = match (self, unit) {
            (Self::Integer(n), Unit::Cores) => u64::try_from(*n).ok()?.checked_mul(1000)?,
            (Self::Integer(n), _) => u64::try_from(*n).ok()?,
            // 1e15 thousandths are exact in a double, and far above any host.
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "checked to be in range"
            )]
            (Self::Float(x), Unit::Cores) if *x > 0.0 && *x < 1e12 => (*x * 1000.0).round() as u64,
            (Self::Float(_), _) => return None,
            (Self::Text(text), unit) => parse(text, unit)?,
        };
        (value > 0).then_some(value)
    }
}

fn parse(text: &str, unit: Unit) -> Option<u64> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let suffix = suffix.trim_start().to_ascii_lowercase();
    let (_, factor) = unit.suffixes().iter().find(|(name, _)| *name == suffix)?;
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if unit != Unit::Count && !fraction.is_empty() => (whole, fraction),
        Some(_) => return None,
        None => (number, ""),
    };
    // Decimal digits, not a float: `1.1g` must not depend on rounding.
    if whole.is_empty() || fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(*factor)?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let fraction = if fraction.is_empty() {
        0
    } else {
        fraction.parse::<u128>().ok()?
    };
    whole.checked_add(u64::try_from(fraction * u128::from(*factor) / scale).ok()?)
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(n) => n.fmt(f),
            Self::Float(x) => write!(f, "{x:?}"),
            Self::Text(text) => f.write_str(&crate::shown(text)),
        }
    }
}

impl From<u64> for Amount {
    fn from(value: u64) -> Self {
        Self::Integer(value.into())
    }
}

impl From<f64> for Amount {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for Amount {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Amount {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Integer(n) => match u64::try_from(*n) {
                Ok(n) => serializer.serialize_u64(n),
                Err(_) => serializer.serialize_i128(*n),
            },
            Self::Float(x) => serializer.serialize_f64(*x),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AmountVisitor;

        impl Visitor<'_> for AmountVisitor {
            type Value = Amount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or text with a unit")
            }

            // Kept as text, so that the check names the limit; here only the position in the file would be known.
            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Amount, E> {
                Ok(Amount::Text(value.to_string()))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Amount, E> {
                Ok(Amount::Integer(value.into()))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Amount, E> {
                Ok(Amount::Integer(value.into()))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Amount, E> {
                Ok(Amount::Float(value))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Amount, E> {
                Ok(Amount::Text(value.to_owned()))
            }
        }

        deserializer.deserialize_any(AmountVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNITS: [Unit; 5] = [
        Unit::Milliseconds,
        Unit::BinaryBytes,
        Unit::DecimalBytes,
        Unit::Cores,
        Unit::Count,
    ];

    fn text(text: &str, unit: Unit) -> Option<u64> {
        Amount::from(text).value(unit)
    }

    #[test]
    fn text_with_a_unit() {
        for (given, unit, value) in [
            ("30s", Unit::Milliseconds, 30_000),
            ("500ms", Unit::Milliseconds, 500),
            ("2m", Unit::Milliseconds, 120_000),
            ("1h", Unit::Milliseconds, 3_600_000),
            ("1d", Unit::Milliseconds, 86_400_000),
            ("2w", Unit::Milliseconds, 1_209_600_000),
            ("1.5S", Unit::Milliseconds, 1500),
            ("512m", Unit::BinaryBytes, 512 << 20),
            ("512mb", Unit::BinaryBytes, 512_000_000),
            ("128MiB", Unit::BinaryBytes, 128 << 20),
            ("1.1g", Unit::BinaryBytes, 1_181_116_006),
            ("1G", Unit::BinaryBytes, 1 << 30),
            ("77b", Unit::BinaryBytes, 77),
            ("100k", Unit::DecimalBytes, 100_000),
            ("100 KiB", Unit::DecimalBytes, 102_400),
            ("1", Unit::Cores, 1000),
            ("0.5", Unit::Cores, 500),
            (" 128 ", Unit::Count, 128),
        ] {
            assert_eq!(text(given, unit), Some(value), "{given}");
        }
    }

    #[test]
    fn text_that_is_no_amount() {
        for (given, unit) in [
            ("30", Unit::Milliseconds),
            ("30y", Unit::Milliseconds),
            ("512", Unit::BinaryBytes),
            ("m", Unit::BinaryBytes),
            (".5m", Unit::BinaryBytes),
            ("1.m", Unit::BinaryBytes),
            ("1.2.3m", Unit::BinaryBytes),
            ("1.5", Unit::Count),
            ("128k", Unit::Count),
            ("0x10", Unit::Count),
            ("٣", Unit::Count),
            ("+1", Unit::Count),
            ("99999999999999999999g", Unit::BinaryBytes),
            ("18446744073709551615k", Unit::BinaryBytes),
            ("nan", Unit::Cores),
            ("inf", Unit::Cores),
            ("1e3", Unit::Cores),
            ("unlimited", Unit::Count),
        ] {
            assert_eq!(text(given, unit), None, "{given}");
        }
        for unit in UNITS {
            for given in [
                "",
                " ",
                "0",
                "0s",
                "0m",
                "0.0k",
                "-1",
                "-1s",
                "-5m",
                "0.0000000001h",
            ] {
                assert_eq!(text(given, unit), None, "{given} {unit:?}");
            }
            for given in [
                f64::NAN,
                f64::INFINITY,
                f64::NEG_INFINITY,
                0.0,
                -0.0,
                -1.0,
                1e308,
            ] {
                assert_eq!(Amount::from(given).value(unit), None, "{given} {unit:?}");
            }
            for given in [0, -1, i128::from(u64::MAX) + 1, i128::MIN, i128::MAX] {
                assert_eq!(Amount::Integer(given).value(unit), None, "{given} {unit:?}");
            }
        }
        assert_eq!(
            Amount::from(30_000.0).value(Unit::Milliseconds),
            None,
            "a float where a whole number belongs"
        );
    }

    #[test]
    fn values_read_well() {
        assert_eq!(Unit::BinaryBytes.text(512 << 20), "512mib");
        assert_eq!(Unit::DecimalBytes.text(100_000), "100kb");
        assert_eq!(Unit::Milliseconds.text(3_600_000), "1h");
        assert_eq!(Unit::Milliseconds.text(1), "1ms");
        assert_eq!(Unit::Cores.text(1500), "1.5");
        assert_eq!(Unit::Cores.text(20), "0.02");
        assert_eq!(Unit::Cores.text(2000), "2");
    }

    proptest! {
        #[test]
        fn any_text_is_an_answer_and_never_zero(given in "\\PC*") {
            for unit in UNITS {
                prop_assert_ne!(text(&given, unit), Some(0));
            }
        }

        #[test]
        fn near_amounts_too(given in "-?[0-9]{0,22}(\\.[0-9]{0,12})? ?[a-zA-Z]{0,3}") {
            for unit in UNITS {
                prop_assert_ne!(text(&given, unit), Some(0));
            }
        }

        #[test]
        fn what_is_shown_parses_back(value in 1..u64::MAX / 1000) {
            for unit in UNITS {
                prop_assert_eq!(text(&unit.text(value), unit), Some(value));
            }
        }

        #[test]
        fn any_float_is_an_answer(given: f64) {
            for unit in UNITS {
                prop_assert_ne!(Amount::Float(given).value(unit), Some(0));
            }
        }
    }
}
