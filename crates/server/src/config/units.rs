//! Amounts in the settings: text with a unit, or a number.

use std::time::Duration;

use belljar_spec::{Amount, Unit};
use serde::{Deserialize, Deserializer};

fn value<'de, D: Deserializer<'de>>(
    deserializer: D,
    unit: Unit,
    zero: &str,
) -> Result<u64, D::Error> {
    let amount = Amount::deserialize(deserializer)?;
    if matches!(&amount, Amount::Text(text) if text == zero) {
        return Ok(0);
    }
    amount.value(unit).ok_or_else(|| {
        let example = match unit {
            Unit::Milliseconds => "a time like \"30s\"",
            Unit::Cores => "a number of cores",
            _ => "a size like \"64m\"",
        };
        serde::de::Error::custom(format!("{amount} is not accepted; give {example}"))
    })
}

pub fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    value(deserializer, Unit::Milliseconds, "0s").map(Duration::from_millis)
}

pub fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    value(deserializer, Unit::BinaryBytes, "0b")
}

pub fn some_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    bytes(deserializer).map(Some)
}

pub fn bytes_or_auto<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    or_auto(deserializer, Unit::BinaryBytes)
}

pub fn cores_or_auto<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    or_auto(deserializer, Unit::Cores)
}

fn or_auto<'de, D: Deserializer<'de>>(
    deserializer: D,
    unit: Unit,
) -> Result<Option<u64>, D::Error> {
    value(deserializer, unit, "auto").map(|value| (value > 0).then_some(value))
}
