-- The embedded frontier. What is queued is what has no final outcome. urls only grows; of outcomes that later ones have
-- replaced, the older are counted in dropped and deleted.
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE sites (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    delay REAL,
    hold_until REAL,
    robots TEXT,
    memo TEXT,
    closed TEXT
);
CREATE TABLE urls (
    number INTEGER PRIMARY KEY,
    key INTEGER NOT NULL,
    site INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    depth INTEGER NOT NULL,
    hops INTEGER NOT NULL,
    parent INTEGER NOT NULL,
    url TEXT NOT NULL,
    extra TEXT
);
CREATE TABLE outcomes (
    row INTEGER PRIMARY KEY,
    url INTEGER NOT NULL,
    status INTEGER NOT NULL,
    code INTEGER NOT NULL,
    at REAL NOT NULL,
    again_at REAL,
    reason TEXT,
    state TEXT
);
CREATE TABLE lapses (url INTEGER PRIMARY KEY, count INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS dropped (url INTEGER PRIMARY KEY, stored INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS hints (url INTEGER PRIMARY KEY, hint REAL NOT NULL, due_at REAL NOT NULL);
CREATE TABLE files (name TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;

-- For people: what became of each URL.
CREATE VIEW tasks AS
SELECT u.number AS id, u.url, s.name AS site, u.priority, u.depth,
    CASE o.status WHEN 1 THEN 'done' WHEN 2 THEN 'failed' WHEN 3 THEN 'retry' WHEN 4 THEN 'skipped' ELSE 'idle' END AS state,
    o.code, o.reason, datetime(o.at, 'unixepoch') AS last_visit, datetime(o.again_at, 'unixepoch') AS available_time
FROM urls u JOIN sites s ON s.number = u.site
LEFT JOIN (SELECT url, max(row) AS row FROM outcomes GROUP BY url) latest ON latest.url = u.number
LEFT JOIN outcomes o ON o.row = latest.row;
