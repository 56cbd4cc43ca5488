//! What went wrong, sorted by what the user has to do about it; the sort decides the exit code.
//!
//! Modules return `anyhow::Error`; where they know the remedy they return a [`Failure`] inside it. The command line
//! finds the outermost one in the chain, prints kind, message and hint, and exits with the kind's code.

use std::fmt;

/// Stable exit codes, documented in `--help` and docs/exit-codes.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An `expect` of the pipeline file did not hold.
    Expectation = 1,
    /// The command line or a file is wrong.
    Config = 2,
    /// A server, a right, a binary is missing or refuses.
    Environment = 3,
    /// A fault of this program.
    Internal = 4,
    /// The source cannot go on: slot lost, made anew, advanced, wrong system or timeline.
    Source = 5,
    /// Rows lost, doubled or differing.
    Invariant = 6,
    /// The interval straddles the threshold.
    Inconclusive = 7,
    /// Interrupted; partial results are written.
    Interrupted = 130,
}

impl Kind {
    pub fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Expectation => "expectation failed",
            Kind::Config => "configuration",
            Kind::Environment => "environment",
            Kind::Internal => "internal",
            Kind::Source => "source cannot go on",
            Kind::Invariant => "data invariant broken",
            Kind::Inconclusive => "inconclusive",
            Kind::Interrupted => "interrupted",
        })
    }
}

/// An error with its remedy. `message` names the thing, `hint` says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub kind: Kind,
    pub message: String,
    pub hint: Option<String>,
}

impl Failure {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Failure { kind, message: message.into(), hint: None }
    }

    pub fn config(message: impl Into<String>) -> Self {
        Self::new(Kind::Config, message)
    }

    pub fn environment(message: impl Into<String>) -> Self {
        Self::new(Kind::Environment, message)
    }

    pub fn source(message: impl Into<String>) -> Self {
        Self::new(Kind::Source, message)
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The outermost failure in an error: among its contexts, which [`anyhow::Error::chain`] hides behind a type of
    /// its own, then among the causes.
    pub fn find(error: &anyhow::Error) -> Option<&Failure> {
        error.downcast_ref().or_else(|| error.chain().find_map(|cause| cause.downcast_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_found_as_root_and_as_context() {
        let root = anyhow::Error::from(Failure::config("root").hint("mend it")).context("outer");
        assert_eq!(Failure::find(&root).unwrap().message, "root");
        let context = anyhow::anyhow!("cause").context(Failure::environment("named")).context("outer");
        assert_eq!(Failure::find(&context).unwrap().kind, Kind::Environment);
        let both = anyhow::Error::from(Failure::config("inner")).context(Failure::environment("outer"));
        assert_eq!(Failure::find(&both).unwrap().message, "outer");
        assert!(Failure::find(&anyhow::anyhow!("plain")).is_none());
    }
}
