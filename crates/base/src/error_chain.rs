//! Text of an error and its causes.

/// Returns the messages of an error and of its causes in one line, joined by `: `.
///
/// Omits a cause if the line already ends with the message of the cause.
#[must_use]
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    line
}
