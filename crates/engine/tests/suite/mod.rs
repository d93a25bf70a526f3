mod harness;
mod session;

use std::pin::Pin;

use belljar::Engine;

pub type Test = fn(Engine) -> Pin<Box<dyn Future<Output = ()> + Send>>;

pub fn all() -> Vec<(&'static str, Test)> {
    session::tests()
}
