//! Names of runs and sandboxes: a prefix and 128 random bits, so none can be guessed and none is used twice.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, shown};

/// Lower-case base32 (RFC 4648 letters): fit for file names, URLs and cgroup names on any file system.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const TEXT_LEN: usize = 26;

fn encode(bits: u128) -> String {
    (0..TEXT_LEN)
        .rev()
        .map(|i| char::from(ALPHABET[(bits >> (5 * i)) as usize & 31]))
        .collect()
}

fn decode(text: &str) -> Option<u128> {
    if text.len() != TEXT_LEN {
        return None;
    }
    let mut bits: u128 = 0;
    for (i, byte) in text.bytes().enumerate() {
        let digit = ALPHABET.iter().position(|&letter| letter == byte)?;
        // 26 letters hold 130 bits: the first may only use three of its five.
        if i == 0 && digit > 7 {
            return None;
        }
        bits = bits << 5 | digit as u128;
    }
    Some(bits)
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $field:literal, $example:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// The caller brings the randomness: 128 bits of it.
            pub fn from_bits(bits: u128) -> Self {
                Self(bits)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), encode(self.0))
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                text.strip_prefix($prefix).and_then(decode).map(Self).ok_or_else(|| Error::InvalidId {
                    field: $field.into(),
                    given: shown(text),
                    example: $example,
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id!(
    /// Names one run: `run_` and 26 letters.
    RunId, "run_", "run", "run_aaaqeayeaudaocajbifqydiob4"
);
id!(
    /// Names one sandbox: `sbx_` and 26 letters.
    SandboxId, "sbx_", "sandbox", "sbx_aaaqeayeaudaocajbifqydiob4"
);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn examples_are_ids_and_near_misses_are_not() {
        let error = "x".parse::<RunId>().unwrap_err();
        let Error::InvalidId { example, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(example.parse::<RunId>().unwrap().to_string(), example);
        assert_eq!(
            RunId::from_bits(0).to_string(),
            format!("run_{}", "a".repeat(26))
        );
        for bad in [
            "",
            "run_",
            "sbx_aaaqeayeaudaocajbifqydiob4",
            "run_AAAQEAYEAUDAOCAJBIFQYDIOB4",
            "run_../../../../../etc/passwd",
            "run_77777777777777777777777777",
            "run_aaaqeayeaudaocajbifqydiob4\n",
            "run_aaaqeayeaudaocajbifqydioé",
        ] {
            assert!(bad.parse::<RunId>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn text_and_json_come_back(bits: u128) {
            let id = SandboxId::from_bits(bits);
            prop_assert_eq!(id.to_string().parse::<SandboxId>(), Ok(id));
            let json = serde_json::to_string(&id).unwrap();
            prop_assert_eq!(serde_json::from_str::<SandboxId>(&json).unwrap(), id);
        }

        #[test]
        fn any_text_is_an_answer(text: String) {
            let _ = text.parse::<RunId>();
        }
    }
}
