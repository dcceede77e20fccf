-- The outbox in MariaDB and MySQL: links for shards on other servers, until these cannot forget them any more. See outbox.py.

-- One box for each run of a server and each stripe. Parcels have the numbers from `taken` to `added`, those below `marked`
-- were there when `lived` (microseconds) was 0. Numbers begin with the time, so that no box ever begins where another did.
CREATE TABLE IF NOT EXISTS gossamer_boxes (
    shard    INT NOT NULL,
    box      BIGINT NOT NULL,
    stripe   INT NOT NULL,
    server   VARCHAR(500) NOT NULL,
    run      VARCHAR(100) NOT NULL,
    taken    BIGINT NOT NULL,
    added    BIGINT NOT NULL,
    marked   BIGINT NOT NULL DEFAULT 0,
    lived    BIGINT NOT NULL DEFAULT 0,
    swept_at BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (shard, box, stripe)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS gossamer_parcels (
    shard  INT NOT NULL,
    box    BIGINT NOT NULL,
    stripe INT NOT NULL,
    number BIGINT NOT NULL,
    links  LONGBLOB NOT NULL,
    PRIMARY KEY (shard, box, stripe, number)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
