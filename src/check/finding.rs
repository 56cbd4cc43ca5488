//! One thing that the check has to say.

use serde::Serialize;

use crate::failure::{Failure, Kind};

/// Whether a pipe would be hindered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// `pipe` or `run` would refuse, fail, or deliver something else than the source has.
    Error,
    /// It would work, but may bite later or is wrong already today.
    Warning,
    /// Worth knowing.
    Note,
}

/// Where the remedy lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    File,
    Source,
    Target,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub severity: Severity,
    /// The kind of failure that the pipe would end with; of warnings and notes: the kind that they are about.
    #[serde(serialize_with = "kind_name")]
    pub kind: Kind,
    pub side: Side,
    /// The thing: a table, a setting, a role, a slot.
    pub subject: String,
    pub message: String,
    pub hint: Option<String>,
    /// SQL for `side` that would mend it, a statement each. Empty: it takes a decision, or is no matter of SQL.
    pub fix: Vec<String>,
}

fn kind_name<S: serde::Serializer>(kind: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(kind)
}

impl Finding {
    /// An error in the words in which the pipe would refuse.
    pub fn refused(side: Side, subject: impl Into<String>, failure: Failure) -> Finding {
        let Failure { kind, message, hint } = failure;
        let subject = subject.into();
        Finding { severity: Severity::Error, kind, side, subject, message, hint, fix: Vec::new() }
    }

    pub fn warning(side: Side, subject: impl Into<String>, failure: Failure) -> Finding {
        Finding { severity: Severity::Warning, ..Finding::refused(side, subject, failure) }
    }

    pub fn note(side: Side, subject: impl Into<String>, message: impl Into<String>) -> Finding {
        let failure = Failure::config(message);
        Finding { severity: Severity::Note, ..Finding::refused(side, subject, failure) }
    }

    pub fn mended_by(mut self, sql: impl Into<String>) -> Finding {
        self.fix.push(sql.into());
        self
    }

    /// The hint is SQL as it stands.
    pub fn mended_by_hint(mut self) -> Finding {
        self.fix.extend(self.hint.clone());
        self
    }
}
