-- The tables of a frontier in MariaDB and MySQL; only what both take. Times are microseconds since 1970.

CREATE TABLE IF NOT EXISTS gossamer_jobs (
    job      INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    digest   BIGINT NOT NULL UNIQUE,
    name     TEXT NOT NULL,
    format   INT NOT NULL,
    revision INT NOT NULL,
    settings MEDIUMTEXT NOT NULL,
    secret   VARBINARY(64) NOT NULL,
    state    VARCHAR(16) NOT NULL,
    placement MEDIUMTEXT,
    made     SMALLINT NOT NULL DEFAULT 0,
    clock    BIGINT
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- One row per shard. phase and `place`: see handover.py. lulls: how often sites were put to sleep or closed. server: the run
-- that was seen last; restarts counts its changes, and until rest_until, when the longest lease has ended, each lane rests
-- once. skew: what is added to the clock of the server so that time never steps back. allowance: the part of the page limit,
-- and in the first shard reserved: the sum of all parts.
CREATE TABLE IF NOT EXISTS gossamer_shards (
    shard      INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    job        INT NOT NULL,
    number     INT NOT NULL,
    skew       BIGINT NOT NULL DEFAULT 0,
    server     VARCHAR(64) NOT NULL DEFAULT '',
    restarts   INT NOT NULL DEFAULT 0,
    rest_until BIGINT NOT NULL DEFAULT 0,
    longest    BIGINT NOT NULL DEFAULT 0,
    allowance  BIGINT,
    reserved   BIGINT,
    lulls      BIGINT NOT NULL DEFAULT 0,
    phase      SMALLINT NOT NULL DEFAULT 0,
    place      VARCHAR(500) NOT NULL DEFAULT '',
    UNIQUE KEY (job, number)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Sums of these are the counts; a worker writes to one stripe, so that workers do not wait for one another. Single rows may be
-- negative. `kept` are stored pages; `later` includes revisits. `pages` are those of a continuous crawl, `fresh` millionths of
-- their freshness. token and latest_at: the last ones of the stripe; the largest of all stripes are those of the shard.
-- `frozen` is doubled by every write: that fails where it is 2^62, and undoes the transaction.
CREATE TABLE IF NOT EXISTS gossamer_counters (
    shard     INT NOT NULL,
    stripe    INT NOT NULL,
    queued    BIGINT NOT NULL DEFAULT 0,
    later     BIGINT NOT NULL DEFAULT 0,
    leased    BIGINT NOT NULL DEFAULT 0,
    held      BIGINT NOT NULL DEFAULT 0,
    done      BIGINT NOT NULL DEFAULT 0,
    failed    BIGINT NOT NULL DEFAULT 0,
    skipped   BIGINT NOT NULL DEFAULT 0,
    parked    BIGINT NOT NULL DEFAULT 0,
    stale     BIGINT NOT NULL DEFAULT 0,
    kept      BIGINT NOT NULL DEFAULT 0,
    revisits  BIGINT NOT NULL DEFAULT 0,
    suspects  BIGINT NOT NULL DEFAULT 0,
    known     BIGINT NOT NULL DEFAULT 0,
    sites     BIGINT NOT NULL DEFAULT 0,
    news      BIGINT NOT NULL DEFAULT 0,
    handed    BIGINT NOT NULL DEFAULT 0,
    pages     BIGINT NOT NULL DEFAULT 0,
    fresh     BIGINT NOT NULL DEFAULT 0,
    token     BIGINT NOT NULL DEFAULT 0,
    latest_at BIGINT NOT NULL DEFAULT 0,
    frozen    BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (shard, stripe)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- ready_at: when a lease should look here, NULL for never (asleep or closed); wake_at: when it should if something were queued.
-- A link to a sleeping site sets ready_at to wake_at. lanes: everything else about the site, packed (SqlSite).
CREATE TABLE IF NOT EXISTS gossamer_sites (
    shard    INT NOT NULL,
    site     BIGINT NOT NULL,
    ready_at BIGINT,
    wake_at  BIGINT NOT NULL,
    hold_at  BIGINT NOT NULL DEFAULT 0,
    name     TEXT NOT NULL,
    region   VARCHAR(64) NOT NULL,
    closed   VARCHAR(255) NOT NULL DEFAULT '',
    lanes    BLOB NOT NULL,
    PRIMARY KEY (shard, site),
    KEY gossamer_sites_ready (shard, region, ready_at),
    KEY gossamer_sites_hold (shard, hold_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS gossamer_notes (
    shard  INT NOT NULL,
    site   BIGINT NOT NULL,
    robots LONGBLOB NOT NULL,
    memo   LONGBLOB NOT NULL,
    PRIMARY KEY (shard, site)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- batch: [[id, place, standing, age], ...] of the requests without an outcome. Their rows stay in the queue.
CREATE TABLE IF NOT EXISTS gossamer_leases (
    shard    INT NOT NULL,
    token    BIGINT NOT NULL,
    site     BIGINT NOT NULL,
    until_at BIGINT NOT NULL,
    lane     INT NOT NULL,
    suspect  TINYINT NOT NULL,
    worker   TEXT NOT NULL,
    batch    MEDIUMTEXT NOT NULL,
    PRIMARY KEY (shard, token),
    KEY gossamer_leases_site (shard, site)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- All keys that were ever queued. The primary key decides which of several workers added one first.
CREATE TABLE IF NOT EXISTS gossamer_seen (
    shard INT NOT NULL,
    id    BIGINT NOT NULL,
    PRIMARY KEY (shard, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Everything that is not finished, leased or not. The key is the order in which a site is worked off. place 0: suspects; 1:
-- what has a time (standing); 2: the rest, by standing and age. again: what a delayed request is counted as, 5 for a retry,
-- 1 to 3 for a revisit; 0 otherwise. What the name of its site says is left out of the URL.
CREATE TABLE IF NOT EXISTS gossamer_queue (
    shard    INT NOT NULL,
    site     BIGINT NOT NULL,
    place    TINYINT NOT NULL,
    standing BIGINT NOT NULL,
    age      BIGINT NOT NULL,
    id       BIGINT NOT NULL,
    url      MEDIUMTEXT NOT NULL,
    depth    INT NOT NULL,
    priority BIGINT NOT NULL DEFAULT 0,
    tries    INT NOT NULL DEFAULT 0,
    lapses   SMALLINT NOT NULL DEFAULT 0,
    again    TINYINT NOT NULL DEFAULT 0,
    extra    LONGBLOB,
    PRIMARY KEY (shard, site, place, standing, age, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS gossamer_done (
    shard       INT NOT NULL,
    id          BIGINT NOT NULL,
    site        BIGINT NOT NULL,
    finished_at BIGINT NOT NULL,
    depth       INT NOT NULL,
    priority    BIGINT NOT NULL,
    tries       INT NOT NULL,
    status      TINYINT NOT NULL,
    code        SMALLINT NOT NULL,
    url         MEDIUMTEXT NOT NULL,
    PRIMARY KEY (shard, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS gossamer_workers (
    shard   INT NOT NULL,
    digest  BIGINT NOT NULL,
    beat_at BIGINT NOT NULL,
    pulse   BLOB NOT NULL,
    PRIMARY KEY (shard, digest)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Any program may insert here. Entries are deleted when they are queued; one that is no URL stays, with its error.
CREATE TABLE IF NOT EXISTS gossamer_inbox (
    entry          BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    job            VARCHAR(500) NOT NULL DEFAULT '',
    url            MEDIUMTEXT NOT NULL,
    priority       BIGINT NOT NULL DEFAULT 0,
    available_time TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    error          VARCHAR(255),
    KEY gossamer_inbox_job (job, error, entry)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- For people: one row per URL, in whatever state.
CREATE VIEW gossamer_tasks AS
WITH working AS (
    SELECT l.shard, b.id, l.worker FROM gossamer_leases l,
        JSON_TABLE(l.batch, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) b
), every AS (
    SELECT q.shard, q.site, q.id, q.url, q.depth, q.priority, q.tries, w.worker,
        CASE WHEN w.id IS NOT NULL THEN 'working' WHEN q.again IN (1, 3) THEN 'done' WHEN q.again = 2 THEN 'failed' ELSE 'idle' END AS state,
        CASE WHEN q.again IN (1, 2, 3) THEN 'again' WHEN q.place = 0 THEN 'suspect' ELSE '' END AS reason,
        NULL AS code,
        CASE q.place WHEN 1 THEN FROM_UNIXTIME(q.standing / 1000000) END AS available_time, NULL AS finished_time
    FROM gossamer_queue q LEFT JOIN working w ON w.shard = q.shard AND w.id = q.id
    UNION ALL
    SELECT d.shard, d.site, d.id, d.url, d.depth, d.priority, d.tries, NULL,
        CASE WHEN d.status = 1 THEN 'done' WHEN d.status = 3 THEN 'done' ELSE 'failed' END,
        CASE d.status WHEN 3 THEN 'skipped' WHEN 4 THEN 'parked' ELSE '' END,
        d.code, NULL, FROM_UNIXTIME(d.finished_at / 1000000)
    FROM gossamer_done d
)
SELECT e.id,
    CASE LEFT(e.url, 1) WHEN '/' THEN CONCAT('https://', s.name, e.url)
        WHEN ':' THEN CONCAT('http://', s.name, SUBSTR(e.url, 2)) ELSE SUBSTR(e.url, 2) END AS url,
    e.state, e.priority, e.available_time, j.name AS job, h.number AS shard, s.name AS site, e.depth, e.tries, e.worker,
    e.code, e.reason, e.finished_time
FROM every e
JOIN gossamer_sites s ON s.shard = e.shard AND s.site = e.site
JOIN gossamer_shards h ON h.shard = e.shard AND h.phase < 2
JOIN gossamer_jobs j ON j.job = h.job;
