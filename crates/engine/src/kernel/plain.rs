//! The plain form of `kernels/README.md`, for a kernel in a language without JSON: fields that end with a NUL.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};

use serde_json::Value;

use super::protocol::{Done, Failure, Reply, Request, Stdin};

/// What a kernel may say in one message.
const MAX_MESSAGE: usize = 64 << 10;
const GREETING: &[u8] = b"shell 1";

/// A request as bytes. What this form has no words for was refused before: tools, imports, live input.
pub fn encode(request: &Request<'_>) -> io::Result<Vec<u8>> {
    let mut fields = Fields::default();
    match request {
        Request::Setup { env: None, .. } | Request::Answer { .. } | Request::Soon => {}
        Request::Setup { env: Some(env), .. } => {
            fields.put("setup")?;
            fields.put_variables(env)?;
        }
        Request::Env { env } => {
            fields.put("env")?;
            fields.put_variables(env)?;
        }
        Request::Run {
            id,
            code,
            name,
            args,
            globals,
            stdin,
            last,
            ..
        } => {
            fields.put("run")?;
            fields.put(id)?;
            fields.put(name)?;
            fields.put(if *last { "1" } else { "0" })?;
            let (kind, input) = match stdin {
                Some(Stdin::Text(text)) => ("text", *text),
                _ => ("none", ""),
            };
            fields.put(kind)?;
            fields.put(input)?;
            fields.put(&args.len().to_string())?;
            for arg in *args {
                fields.put(arg)?;
            }
            fields.put(&globals.len().to_string())?;
            for (name, value) in *globals {
                fields.put(name)?;
                match value {
                    Value::String(text) => fields.put(text)?,
                    other => fields.put(&other.to_string())?,
                }
            }
            fields.put(code)?;
        }
    }
    Ok(fields.0)
}

#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn put(&mut self, field: &str) -> io::Result<()> {
        if field.contains('\0') {
            let reason = "NUL in what a shell is to be given";
            return Err(io::Error::new(ErrorKind::InvalidInput, reason));
        }
        self.0.extend_from_slice(field.as_bytes());
        self.0.push(0);
        Ok(())
    }

    fn put_variables(&mut self, env: &BTreeMap<String, String>) -> io::Result<()> {
        self.put(&env.len().to_string())?;
        env.iter().try_for_each(|(name, value)| {
            self.put(name)?;
            self.put(value)
        })
    }
}

/// The first whole message of `bytes` and its length, if one has arrived. The very first one of a kernel is its greeting.
pub fn decode(bytes: &[u8], greeted: &mut bool) -> io::Result<Option<(Reply, usize)>> {
    let forged = || io::Error::from(ErrorKind::InvalidData);
    let mut read = Reader { bytes, at: 0 };
    if !*greeted {
        match read.field()? {
            Some(GREETING) => {}
            Some(_) => return Err(forged()),
            None => return Ok(None),
        }
    }
    let reply = match read.field()? {
        None => return Ok(None),
        Some(b"ready") => Reply::Ready {},
        Some(b"done") => match read.done()? {
            None => return Ok(None),
            Some(done) => Reply::Done(Box::new(done)),
        },
        Some(_) => return Err(forged()),
    };
    *greeted = true;
    Ok(Some((reply, read.at)))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// `None`: the rest has not arrived.
    fn field(&mut self) -> io::Result<Option<&'a [u8]>> {
        let rest = &self.bytes[self.at..];
        match rest.iter().position(|byte| *byte == 0) {
            Some(end) if self.at + end < MAX_MESSAGE => {
                self.at += end + 1;
                Ok(Some(&rest[..end]))
            }
            None if self.bytes.len() < MAX_MESSAGE => Ok(None),
            _ => Err(io::Error::new(
                ErrorKind::InvalidData,
                "a message is too long",
            )),
        }
    }

    fn done(&mut self) -> io::Result<Option<Done>> {
        let mut fields = [&[][..]; 6];
        for field in &mut fields {
            match self.field()? {
                Some(found) => *field = found,
                None => return Ok(None),
            }
        }
        let [id, status, interrupted, kind, message, line] = fields;
        let forged = || io::Error::from(ErrorKind::InvalidData);
        let status = digits(status).filter(|status| *status <= 255);
        let status = status.ok_or_else(forged)?;
        let interrupted = match interrupted {
            b"0" => false,
            b"1" => true,
            _ => return Err(forged()),
        };
        let line = match line {
            b"" => None,
            line => Some(digits(line).ok_or_else(forged)?),
        };
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let error = (!kind.is_empty()).then(|| Failure {
            kind: text(kind),
            message: text(message),
            traceback: String::new(),
            line,
            column: None,
            causes: Vec::new(),
        });
        Ok(Some(Done {
            id: text(id),
            ok: status == 0 && !interrupted,
            value: None,
            value_text: None,
            error,
            exit_code: i32::try_from(status).ok(),
            interrupted,
        }))
    }
}

fn digits(bytes: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(bytes).ok()?;
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8], greeted: bool) -> io::Result<Option<(Reply, usize)>> {
        let mut greeted = greeted;
        decode(bytes, &mut greeted)
    }

    #[test]
    fn a_greeting_comes_first_and_once() {
        let whole = b"shell 1\0ready\0";
        for end in 0..whole.len() {
            assert!(read(&whole[..end], false).expect("a part").is_none());
        }
        assert!(matches!(
            read(whole, false),
            Ok(Some((Reply::Ready {}, 14)))
        ));
        assert!(read(b"ready\0", false).is_err());
        assert!(read(whole, true).is_err());
    }

    #[test]
    fn how_a_run_ended() {
        let whole = b"done\0run_1\x002\x000\0SyntaxError\0near `fi'\x003\0more";
        let Ok(Some((Reply::Done(done), length))) = read(whole, true) else {
            panic!("no message")
        };
        assert_eq!(length, whole.len() - 4);
        assert_eq!(
            (done.id.as_str(), done.exit_code, done.ok),
            ("run_1", Some(2), false)
        );
        let error = done.error.expect("an error");
        assert_eq!((error.kind.as_str(), error.line), ("SyntaxError", Some(3)));
        for forged in [
            &b"done\0x\x00256\x000\0\0\0\0"[..],
            b"done\0x\0+1\x000\0\0\0\0",
            b"done\0x\x001\x002\0\0\0\0",
            b"done\0x\x001\x001\0\0\0z\0",
            b"call\0x\0",
        ] {
            assert!(read(forged, true).is_err(), "{forged:?}");
        }
    }

    #[test]
    fn a_message_without_an_end_is_refused() {
        assert!(read(&vec![b'x'; MAX_MESSAGE], true).is_err());
        let mut long = b"done\0".to_vec();
        long.resize(MAX_MESSAGE + 100, b'x');
        long.push(0);
        assert!(read(&long, true).is_err());
    }

    #[test]
    fn what_cannot_be_said_is_refused() {
        let globals = serde_json::from_str(r#"{"a": "x", "b": [1, "y"]}"#).expect("globals");
        let run = |code| {
            encode(&Request::Run {
                id: "i",
                code,
                name: "main.sh",
                args: &["one".into()],
                globals: &globals,
                tools: None,
                stdin: Some(Stdin::Text("in")),
                last: false,
                value_bytes: 1,
            })
        };
        let expected =
            b"run\0i\0main.sh\x000\0text\0in\x001\0one\x002\0a\0x\0b\0[1,\"y\"]\0echo\0".to_vec();
        assert_eq!(run("echo").expect("bytes"), expected);
        assert!(run("a\0b").is_err());
    }

    proptest! {
        /// Whatever arrives, and in whatever pieces: an answer, an error or a wish for more, and never beyond the end.
        #[test]
        fn fuzz_plain_frames(bytes in prop::collection::vec(prop::sample::select(b"done\0ready1shell x".to_vec()), 0..200)) {
            for greeted in [false, true] {
                if let Ok(Some((_, length))) = read(&bytes, greeted) {
                    prop_assert!(length <= bytes.len());
                }
            }
        }
    }
}
