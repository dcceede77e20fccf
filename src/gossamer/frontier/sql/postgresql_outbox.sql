-- The outbox in PostgreSQL: links for shards on other servers, until these cannot forget them any more. See outbox.py.

-- One box for each run of a server and each stripe. Parcels have the numbers from `taken` to `added`; those below `marked`
-- were there when `lived` (microseconds) was 0. Numbers begin with the time, so that no box ever begins where another did.
CREATE TABLE IF NOT EXISTS gossamer_boxes (
    shard    integer NOT NULL,
    box      bigint NOT NULL,
    stripe   integer NOT NULL,
    server   text NOT NULL,
    run      text NOT NULL,
    taken    bigint NOT NULL,
    added    bigint NOT NULL,
    marked   bigint NOT NULL DEFAULT 0,
    lived    bigint NOT NULL DEFAULT 0,
    swept_at bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (shard, box, stripe)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE IF NOT EXISTS gossamer_parcels (
    shard  integer NOT NULL,
    box    bigint NOT NULL,
    stripe integer NOT NULL,
    number bigint NOT NULL,
    links  bytea NOT NULL,
    PRIMARY KEY (shard, box, stripe, number)
) WITH (autovacuum_vacuum_scale_factor = 0.05)
