mod bash;
mod closed;
mod forged;
mod harness;
mod languages;
mod neighbours;
mod pool;
mod renewal;
mod roots;
mod session;
mod tools;

use std::pin::Pin;

use belljar::Engine;

pub type Test = fn(Engine) -> Pin<Box<dyn Future<Output = ()> + Send>>;

macro_rules! tests {
    ($module:literal: $($name:ident),* $(,)?) => {
        pub fn tests() -> Vec<(&'static str, super::Test)> {
            vec![$((concat!($module, "::", stringify!($name)), |engine| Box::pin($name(engine)))),*]
        }
    };
}
pub(crate) use tests;

pub fn all() -> Vec<(&'static str, Test)> {
    let mut all = session::tests();
    all.extend(pool::tests());
    all.extend(renewal::tests());
    all.extend(roots::tests());
    all.extend(languages::tests());
    all.extend(bash::tests());
    all.extend(closed::tests());
    all.extend(tools::tests());
    all.extend(forged::tests());
    all.extend(neighbours::tests());
    all
}
