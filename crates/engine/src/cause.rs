//! Errors of libraries wrap what the system said, which is what helps.

pub fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}
