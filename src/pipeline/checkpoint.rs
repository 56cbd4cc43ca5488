//! Where to go on: the target's checkpoint held against the source's slot. Pure.
//!
//! The checkpoint is written before the slot moves, so an honest slot is never ahead of it. A slot that is ahead, gone,
//! or of another server has lost changes that nobody can send again: that is named, never streamed over.

use crate::{
    failure::Failure,
    sink::{Checkpoint, Stage},
    source::slot::{SlotInfo, System},
    units::Lsn,
};

/// What to do first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// Nothing is there: copy the tables, then stream.
    Fresh,
    /// A snapshot was not finished and left no slot: copy again, into emptied tables.
    Again { sequence: u64 },
    /// Stream from here on.
    Stream { from: Lsn, sequence: u64 },
}

/// Decides, or refuses with the reason and the remedy.
pub fn resume(
    slot_name: &str,
    database: &str,
    checkpoint: Option<&Checkpoint>,
    slot: Option<&SlotInfo>,
    system: System,
) -> Result<Resume, Failure> {
    if let Some(slot) = slot {
        check_slot(slot_name, database, slot)?;
    }
    if let Some(checkpoint) = checkpoint {
        check_system(slot_name, checkpoint, system)?;
    }
    match (checkpoint, slot) {
        (None, None) => Ok(Resume::Fresh),
        (None, Some(_)) => Err(Failure::source(format!(
            "replication slot {slot_name} exists, but the target has no checkpoint of it: nobody knows what it skips"
        ))
        .hint(format!(
            "give source.slot another name, or drop it: select pg_drop_replication_slot('{slot_name}')"
        ))),
        (Some(checkpoint), None) if checkpoint.stage == Stage::Snapshot => {
            Ok(Resume::Again { sequence: checkpoint.sequence })
        }
        (Some(checkpoint), None) => Err(Failure::source(format!(
            "replication slot {slot_name} is missing, but the target has its changes up to {}: those after it are lost",
            checkpoint.lsn
        ))
        .hint("load the tables anew: choose another target.database (or drop this one) and another source.slot")),
        (Some(checkpoint), Some(slot)) => from_both(slot_name, checkpoint, slot),
    }
}

fn from_both(slot_name: &str, checkpoint: &Checkpoint, slot: &SlotInfo) -> Result<Resume, Failure> {
    let confirmed = slot.confirmed_flush.unwrap_or(Lsn::ZERO);
    if confirmed > checkpoint.lsn {
        return Err(Failure::source(format!(
            "replication slot {slot_name} is at {confirmed}, ahead of {}, which is all that the target has: it was \
             advanced or made anew, and the changes between are lost",
            checkpoint.lsn
        ))
        .hint("load the tables anew: drop the slot, and choose another target.database (or drop this one)"));
    }
    Ok(Resume::Stream { from: checkpoint.lsn, sequence: checkpoint.sequence })
}

/// Refuses a slot from which nothing can be streamed any more, or never could.
pub fn check_slot(slot_name: &str, database: &str, slot: &SlotInfo) -> Result<(), Failure> {
    if slot.plugin.as_deref() != Some("pgoutput") {
        let plugin = slot.plugin.as_deref().unwrap_or("none (it is a physical slot)");
        return Err(Failure::source(format!(
            "replication slot {slot_name} has output plugin {plugin}, not pgoutput"
        ))
        .hint("give source.slot another name"));
    }
    if slot.database.as_deref() != Some(database) {
        let other = slot.database.as_deref().unwrap_or("no database");
        return Err(Failure::source(format!(
            "replication slot {slot_name} belongs to {other}, not to {database}"
        ))
        .hint("give source.slot another name, or connect to that database"));
    }
    if slot.wal_status.as_deref() == Some("lost") {
        return Err(Failure::source(format!(
            "replication slot {slot_name} is lost: the server removed WAL that it needed"
        ))
        .hint("raise max_slot_wal_keep_size, drop the slot, and load the tables anew"));
    }
    Ok(())
}

fn check_system(slot_name: &str, checkpoint: &Checkpoint, system: System) -> Result<(), Failure> {
    if checkpoint.system_identifier != system.identifier {
        return Err(Failure::source(format!(
            "the target's checkpoint of {slot_name} is of another PostgreSQL (system identifier {}), this one is {}",
            checkpoint.system_identifier, system.identifier
        ))
        .hint("check source.url; for a new source choose another target.database"));
    }
    if checkpoint.timeline != system.timeline {
        return Err(Failure::source(format!(
            "the source is on timeline {}, the target's checkpoint of {slot_name} is of timeline {}: a standby was \
             promoted, and may lack what was delivered",
            system.timeline, checkpoint.timeline
        ))
        .hint("load the tables anew: choose another target.database and another source.slot"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Kind;

    const SYSTEM: System = System { identifier: 7, timeline: 1, flush_lsn: Lsn(900) };

    fn checkpoint(stage: Stage) -> Checkpoint {
        let slot = "s".to_owned();
        Checkpoint { slot, system_identifier: 7, timeline: 1, lsn: Lsn(500), stage, sequence: 3 }
    }

    fn slot(confirmed: u64) -> SlotInfo {
        SlotInfo {
            plugin: Some("pgoutput".to_owned()),
            database: Some("db".to_owned()),
            active_pid: None,
            confirmed_flush: Some(Lsn(confirmed)),
            wal_status: Some("reserved".to_owned()),
        }
    }

    #[test]
    fn what_can_go_on_goes_on() {
        let streaming = checkpoint(Stage::Streaming);
        let snapshot = checkpoint(Stage::Snapshot);
        let from = Resume::Stream { from: Lsn(500), sequence: 3 };
        for (checkpoint, slot, expected) in [
            (None, None, Resume::Fresh),
            (Some(&snapshot), None, Resume::Again { sequence: 3 }),
            (Some(&snapshot), Some(slot(500)), from.clone()),
            (Some(&streaming), Some(slot(500)), from.clone()),
            (Some(&streaming), Some(slot(400)), from),
        ] {
            assert_eq!(resume("s", "db", checkpoint, slot.as_ref(), SYSTEM).unwrap(), expected);
        }
    }

    #[test]
    fn every_gap_is_refused_by_name() {
        let streaming = checkpoint(Stage::Streaming);
        let refused =
            |checkpoint: Option<&Checkpoint>, slot: Option<SlotInfo>, system: System, word: &str| {
                let failure = resume("s", "db", checkpoint, slot.as_ref(), system).unwrap_err();
                assert_eq!(failure.kind, Kind::Source);
                assert!(failure.message.contains(word) && failure.hint.is_some(), "{failure}");
            };
        refused(None, Some(slot(500)), SYSTEM, "no checkpoint");
        refused(Some(&streaming), None, SYSTEM, "missing");
        refused(Some(&streaming), Some(slot(501)), SYSTEM, "ahead");
        refused(Some(&streaming), Some(slot(500)), System { identifier: 8, ..SYSTEM }, "another PostgreSQL");
        refused(Some(&streaming), Some(slot(500)), System { timeline: 2, ..SYSTEM }, "timeline 2");
        let with = |change: fn(&mut SlotInfo)| {
            let mut slot = slot(500);
            change(&mut slot);
            Some(slot)
        };
        refused(Some(&streaming), with(|slot| slot.plugin = None), SYSTEM, "physical");
        refused(Some(&streaming), with(|slot| slot.plugin = Some("wal2json".into())), SYSTEM, "wal2json");
        refused(
            Some(&streaming),
            with(|slot| slot.database = Some("other".into())),
            SYSTEM,
            "belongs to other",
        );
        refused(Some(&streaming), with(|slot| slot.wal_status = Some("lost".into())), SYSTEM, "is lost");
    }
}
