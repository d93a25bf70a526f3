//! Networks as JSON: a word, a list of rules, or an object with caps. Values of headers go in, and never come out.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{Allow, CAPS, HostRule, MAX_RULES, Network, NetworkCaps, Secret};
use crate::Amount;

impl Serialize for HostRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.headers.is_empty() && self.env.is_none() {
            return serializer.collect_str(self);
        }
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("host", &self.to_string())?;
        let names: BTreeMap<_, _> = self.headers.keys().map(|name| (name, "…")).collect();
        map.serialize_entry("headers", &names)?;
        if let Some(env) = &self.env {
            map.serialize_entry("env", env)?;
        }
        map.end()
    }
}

impl Serialize for Allow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_str("none"),
            Self::All => serializer.serialize_str("all"),
            Self::Only(rules) => serializer.collect_seq(rules),
        }
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.caps == NetworkCaps::default() && !self.intercept {
            return self.allow.serialize(serializer);
        }
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("allow", &self.allow)?;
        map.serialize_entry(CAPS[0].0, &self.caps.connections)?;
        map.serialize_entry(CAPS[1].0, &self.caps.bytes)?;
        map.serialize_entry(CAPS[2].0, &self.caps.bytes_per_second)?;
        map.serialize_entry("intercept", &self.intercept)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for HostRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Full {
            host: String,
            #[serde(default, deserialize_with = "crate::or_default")]
            headers: BTreeMap<String, String>,
            #[serde(default)]
            env: Option<String>,
        }

        #[derive(serde::Deserialize)]
        #[serde(
            untagged,
            expecting = "a host, or an object with host, headers and env"
        )]
        enum Either {
            Text(String),
            #[serde(deserialize_with = "crate::object")]
            Full(Full),
        }

        let full = match Either::deserialize(deserializer)? {
            Either::Text(text) => return text.parse().map_err(de::Error::custom),
            Either::Full(full) => full,
        };
        let mut rule: Self = full.host.parse().map_err(de::Error::custom)?;
        rule.headers = full
            .headers
            .into_iter()
            .map(|(name, value)| (name, Secret(value)))
            .collect();
        rule.env = full.env;
        Ok(rule)
    }
}

struct AllowVisitor;

impl<'de> Visitor<'de> for AllowVisitor {
    type Value = Allow;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"none\", \"all\" or a list of hosts")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Allow, E> {
        match text {
            "none" => Ok(Allow::None),
            "all" => Ok(Allow::All),
            other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Allow, A::Error> {
        let mut rules: Vec<HostRule> = Vec::new();
        while let Some(rule) = seq.next_element()? {
            rules.push(rule);
            if rules.len() > MAX_RULES {
                break;
            }
        }
        Allow::only(rules).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Allow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AllowVisitor)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NetworkVisitor;

        impl<'de> Visitor<'de> for NetworkVisitor {
            type Value = Network;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"none\", \"all\", a list of hosts, or an object with allow and caps")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Network, E> {
                AllowVisitor.visit_str(text).map(Network::from)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Network, A::Error> {
                AllowVisitor.visit_seq(seq).map(Network::from)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Network, A::Error> {
                let mut network = Network::default();
                let mut allow = None;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "allow" {
                        allow = Some(map.next_value()?);
                    } else if name == "intercept" {
                        network.intercept = map.next_value::<Option<_>>()?.unwrap_or_default();
                    } else {
                        let amount: Option<Amount> = map.next_value()?;
                        let set = network.caps.set(&name, amount.as_ref());
                        set.map_err(de::Error::custom)?;
                    }
                }
                network.allow = allow.ok_or_else(|| de::Error::missing_field("allow"))?;
                Ok(network)
            }
        }

        deserializer.deserialize_any(NetworkVisitor)
    }
}
