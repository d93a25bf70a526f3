//! Values that code claims, of which no more is kept than fits: in memory a value can take a hundred times what its JSON does.
//!
//! What does not fit is read to its end all the same, so that the rest of the frame can be understood.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// JSON and text of a run's value, each. Its kernel is asked to keep to that.
pub const VALUE_BYTES: usize = 1 << 20;
/// Each takes the memory of one `Value`, some 80 bytes. A list of digits that is a mebibyte of JSON has as many.
const MOST_PARTS: usize = 1 << 19;
/// What a list, or an object, takes as soon as there is something in it; and an object's entry besides its value.
const LIST: usize = 3;
const OBJECT: usize = 4;
const ENTRY: usize = 1;
/// Of the errors that led to one.
const MOST_CAUSES: usize = 16;

/// The value of a run; without one if it is too large, as if its kernel had seen that.
pub fn value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Room::of(VALUE_BYTES).read(deserializer)
}

/// `None`: it is too large.
pub fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Value>>, D::Error> {
    match Room::of(usize::MAX).read(deserializer)? {
        None => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items)),
        Some(_) => Err(D::Error::custom("no list")),
    }
}

/// `None`: it is too large.
pub fn object<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Map<String, Value>>, D::Error> {
    match Room::of(usize::MAX).read(deserializer)? {
        None => Ok(None),
        Some(Value::Object(entries)) => Ok(Some(entries)),
        Some(_) => Err(D::Error::custom("no object")),
    }
}

/// The first few.
pub fn causes<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(First(PhantomData))
}

/// In at most so many bytes.
pub fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.shrink_to_fit();
    }
    text
}

/// What is left for a value.
struct Room {
    /// Of text; all else is in parts.
    bytes: usize,
    parts: usize,
    is_full: bool,
}

impl Room {
    fn of(bytes: usize) -> Self {
        Self {
            bytes,
            parts: MOST_PARTS,
            is_full: false,
        }
    }

    fn read<'de, D: Deserializer<'de>>(
        mut self,
        deserializer: D,
    ) -> Result<Option<Value>, D::Error> {
        let value = DeserializeSeed::deserialize(&mut self, deserializer)?;
        Ok((!self.is_full).then_some(value))
    }

    fn take(&mut self, parts: usize, bytes: usize) {
        match (self.parts.checked_sub(parts), self.bytes.checked_sub(bytes)) {
            (Some(parts), Some(bytes)) => (self.parts, self.bytes) = (parts, bytes),
            _ => self.is_full = true,
        }
    }

    fn plain(&mut self, value: impl Into<Value>) -> Value {
        self.take(1, 0);
        value.into()
    }
}

impl<'de> DeserializeSeed<'de> for &mut Room {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Room {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(self.plain(()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(self.plain(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(self.plain(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(self.plain(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(self.plain(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        self.take(1, text.len());
        Ok(if self.is_full {
            Value::Null
        } else {
            text.into()
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.take(1, 0);
        let mut kept = Vec::new();
        while !self.is_full {
            let Some(item) = items.next_element_seed(&mut *self)? else {
                return Ok(Value::Array(kept));
            };
            if kept.is_empty() {
                self.take(LIST, 0);
            }
            kept.push(item);
        }
        drop(kept);
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        self.take(1, 0);
        let mut kept = Map::new();
        while !self.is_full {
            let Some(name) = entries.next_key::<String>()? else {
                return Ok(Value::Object(kept));
            };
            self.take(if kept.is_empty() { OBJECT } else { 0 }, 0);
            self.take(ENTRY, name.len());
            kept.insert(name, entries.next_value_seed(&mut *self)?);
        }
        drop(kept);
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Null)
    }
}

struct First<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for First<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut kept = Vec::new();
        while kept.len() < MOST_CAUSES {
            let Some(item) = items.next_element()? else {
                return Ok(kept);
            };
            kept.push(item);
        }
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(json: &str) -> Option<Value> {
        let mut deserializer = serde_json::Deserializer::from_str(json);
        let read = value(&mut deserializer).expect("JSON");
        deserializer.end().expect("nothing more");
        read
    }

    #[test]
    fn what_fits_is_as_it_was() {
        let json = r#"{"b":[1,-2,2.5,"x",null,true,[],{}],"a":{"":{"é":18446744073709551615}},"b2":1e300}"#;
        let expected: Value = serde_json::from_str(json).expect("JSON");
        let read = read(json).expect("it fits");
        assert_eq!(read.to_string(), expected.to_string());
    }

    #[test]
    fn what_is_too_large_is_left_out() {
        assert!(read(&format!("\"{}\"", "x".repeat(VALUE_BYTES))).is_some());
        assert!(read(&format!("\"{}\"", "x".repeat(VALUE_BYTES + 1))).is_none());
        let digits = |count| format!("[{}0]", "0,".repeat(count));
        assert!(read(&digits(MOST_PARTS - 10)).is_some());
        assert!(read(&digits(MOST_PARTS)).is_none());
        let many = |one: &str, count| format!("[{}0]", format!("{one},").repeat(count));
        for one in [r#"{"":0}"#, "[0]", r#""""#, "{}"] {
            assert!(read(&many(one, 1000)).is_some(), "{one}");
            assert!(read(&many(one, 2 << 20)).is_none(), "{one}");
        }
        let key = "k".repeat(VALUE_BYTES + 1);
        assert!(read(&format!("{{\"{key}\":0}}")).is_none());
    }

    #[test]
    fn the_first_causes_are_kept() {
        let json = format!("[{}9]", "1,".repeat(100));
        let mut deserializer = serde_json::Deserializer::from_str(&json);
        let kept: Vec<u8> = causes(&mut deserializer).expect("a list");
        assert_eq!(kept, [1; MOST_CAUSES]);
        deserializer.end().expect("nothing more");
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(cut("aé".into(), 3), "aé");
        assert_eq!(cut("aé".into(), 2), "a");
    }

    proptest! {
        /// The same as the library's own.
        #[test]
        fn fuzz_values(json in r#"[\[\]{}",:0-9.eu\\ truefalsn-]{0,60}"#) {
            let expected = serde_json::from_str::<Value>(&json).ok();
            let mut deserializer = serde_json::Deserializer::from_str(&json);
            let read = value(&mut deserializer).ok().flatten().filter(|_| deserializer.end().is_ok());
            prop_assert_eq!(read, expected);
        }
    }
}
