//! The account that a server runs as.
//!
//! PostgreSQL refuses to run as root. When we are root its programs run as `postgres`, else as `nobody`; otherwise they
//! run as ourselves. Accounts are read from /etc/passwd alone: system accounts live there, and a name service would
//! need libc's lookup.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
};

use anyhow::{Context, Result};

/// Numeric ids of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
}

/// The kernel's overflow ids, which every Linux maps to an account without rights.
const NOBODY: u32 = 65534;

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// `None`: run as ourselves. Otherwise, because we are root, the account to step down to.
pub fn unprivileged() -> Option<Account> {
    if !is_root() {
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    Some(choose(&passwd))
}

fn choose(passwd: &str) -> Account {
    let named = |wanted: &str| passwd.lines().filter_map(parse_entry).find(|account| account.name == wanted);
    named("postgres").or_else(|| named("nobody")).unwrap_or(Account {
        name: "nobody".to_owned(),
        uid: NOBODY,
        gid: NOBODY,
    })
}

fn parse_entry(line: &str) -> Option<Account> {
    let mut fields = line.split(':');
    let name = fields.next()?.to_owned();
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    (uid != 0).then_some(Account { name, uid, gid })
}

impl Account {
    /// Whether this account may enter `folder`: search permission on it and on every folder above it.
    pub fn can_enter(&self, folder: &Path) -> bool {
        let Ok(folder) = folder.canonicalize() else { return false };
        folder.ancestors().all(|step| self.can_search(step))
    }

    fn can_search(&self, folder: &Path) -> bool {
        fs::metadata(folder).is_ok_and(|meta| {
            let bit = match (meta.uid() == self.uid, meta.gid() == self.gid) {
                (true, _) => 0o100,
                (false, true) => 0o010,
                (false, false) => 0o001,
            };
            meta.permissions().mode() & bit != 0
        })
    }
}

/// Give `path` itself (not what is below it) to `account`; nothing to do when that is ourselves.
pub fn give(path: &Path, account: Option<&Account>) -> Result<()> {
    let Some(account) = account else { return Ok(()) };
    chown(path, Some(account.uid), Some(account.gid))
        .with_context(|| format!("give {} to {}", path.display(), account.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefers_postgres_then_nobody_then_the_overflow_ids() {
        let both =
            "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65533::/:/x\npostgres:x:101:104:a,,:/v:/bin/bash\n";
        assert_eq!(choose(both), Account { name: "postgres".into(), uid: 101, gid: 104 });
        assert_eq!(choose("nobody:x:99:98::/:/x").uid, 99);
        assert_eq!(choose("garbage\npostgres:x:0:0::/:/x").uid, NOBODY);
    }

    #[test]
    fn a_closed_ancestor_keeps_an_account_out() {
        let stranger = Account { name: "stranger".into(), uid: 4_000_000, gid: 4_000_000 };
        let closed = tempfile::tempdir().unwrap();
        let below = closed.path().join("below");
        fs::create_dir(&below).unwrap();
        fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!stranger.can_enter(&below));
        assert!(stranger.can_enter(Path::new("/")));
        assert!(!stranger.can_enter(Path::new("/no/such/folder")));
    }
}
