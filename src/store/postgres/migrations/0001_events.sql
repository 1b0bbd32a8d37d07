-- Everything a relay keeps. Applied migrations are never edited: a change is a new file.
--
-- Half of an id, the name of a tag and of what was taken back are 16 bytes, held as uuid: half the
-- room of bytea in every index, and compared as bytes. They are no random identifiers.

-- The order of commits. One row: whoever commits events holds the lock of buzz.take_turn, reads the
-- last sequence, gives out the next ones and writes the new last one.
CREATE TABLE buzz.head (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    seq      bigint  NOT NULL,
    -- The server's WAL timeline: it changes when a standby takes over.
    timeline text    NOT NULL
) WITH (fillfactor = 50);
INSERT INTO buzz.head (seq, timeline) VALUES (0, '');

CREATE TABLE buzz.events (
    seq     bigint PRIMARY KEY,
    id      bytea  NOT NULL CHECK (octet_length(id) = 32),
    -- The first half of the id.
    half    uuid   NOT NULL,
    pubkey  bytea  NOT NULL CHECK (octet_length(pubkey) = 32),
    -- -created_at: what is newest comes first where age and half ascend.
    age     bigint NOT NULL CHECK (age <= 0),
    kind    integer NOT NULL,
    -- What only one version is kept of: a hash of author, kind and d tag.
    address uuid,
    expires bigint,
    -- A hash of letter and value of each tag that filters can ask for.
    tags    uuid[] NOT NULL,
    -- The event as clients get it, UTF-8.
    json    bytea  NOT NULL
);
-- Looked up by id. Also a net below the relays: no event is stored twice.
CREATE UNIQUE INDEX events_id ON buzz.events (id);
-- And no address has two versions.
CREATE UNIQUE INDEX events_address ON buzz.events (address) WHERE address IS NOT NULL;
CREATE INDEX events_time ON buzz.events (age, half);
CREATE INDEX events_kind ON buzz.events (kind, age, half);
CREATE INDEX events_author ON buzz.events (pubkey, age, half);
CREATE INDEX events_author_kind ON buzz.events (pubkey, kind, age, half);
CREATE INDEX events_expires ON buzz.events (expires) WHERE expires IS NOT NULL;

-- One row for each of events.tags; in the order of answers within a tag.
CREATE TABLE buzz.tags (
    tag  uuid    NOT NULL,
    age  bigint  NOT NULL,
    half uuid    NOT NULL,
    seq  bigint  NOT NULL,
    kind integer NOT NULL
);
CREATE INDEX tags_order ON buzz.tags (tag, age, half) INCLUDE (seq, kind);

-- What authors took back (NIP-09): ids, and addresses up to a time.
CREATE TABLE buzz.deleted (
    pubkey bytea  NOT NULL,
    target uuid   NOT NULL,
    until  bigint NOT NULL,
    PRIMARY KEY (pubkey, target)
);

-- Who vanished (NIP-62), up to when, and whether its past is still being removed.
CREATE TABLE buzz.vanished (
    pubkey    bytea   PRIMARY KEY,
    until     bigint  NOT NULL,
    under_way boolean NOT NULL,
    since     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX vanished_under_way ON buzz.vanished (pubkey) WHERE under_way;

-- The access lists. version grows with every ban, in commit order: the relays ask for what is new.
CREATE TABLE buzz.access (
    pubkey  bytea   PRIMARY KEY CHECK (octet_length(pubkey) = 32),
    banned  boolean NOT NULL,
    allowed boolean NOT NULL,
    member  boolean NOT NULL,
    version bigint
);
CREATE INDEX access_by_version ON buzz.access (version) WHERE version IS NOT NULL;
CREATE SEQUENCE buzz.access_version;

-- Ephemeral events on their way to the other relays. Kept for seconds; empty after a crash.
CREATE UNLOGGED TABLE buzz.ephemeral (
    n      bigint PRIMARY KEY,
    -- The relay that published it.
    origin bigint NOT NULL,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    json   bytea NOT NULL
);
CREATE SEQUENCE buzz.ephemeral_n;

-- Waits for the turn to commit events, which lasts until the transaction ends, and returns the last
-- sequence. Its reads see what the turn before has committed: each statement of a volatile function
-- has a snapshot of its own.
--
-- A standby that took over may lack the last commits of the server before it, whose sequences the
-- relays have delivered. So on a new timeline the sequence leaps over them.
CREATE FUNCTION buzz.take_turn(timeline_now text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    last bigint;
    timeline_then text;
BEGIN
    PERFORM pg_advisory_xact_lock(7094707117252804609);
    SELECT seq, timeline INTO STRICT last, timeline_then FROM buzz.head;
    IF timeline_then <> timeline_now THEN
        IF timeline_then <> '' THEN
            last := last + 1048576;
        END IF;
        UPDATE buzz.head SET seq = last, timeline = timeline_now;
    END IF;
    RETURN last;
END $$;

-- Passes ephemeral events on. One at a time, so that n grows in commit order; durable is nothing of it.
CREATE FUNCTION buzz.pass_on(by bigint, jsons bytea[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_advisory_xact_lock(7094707117252804611);
    INSERT INTO buzz.ephemeral (n, origin, json)
        SELECT nextval('buzz.ephemeral_n'), by, j FROM unnest(jsons) AS x(j);
    PERFORM pg_notify('buzz_ephemeral', (SELECT last_value FROM buzz.ephemeral_n)::text);
END $$;

-- Removes what is older than so many seconds, and of the rest what is beyond so many bytes. One relay
-- at a time; the others need not wait.
CREATE FUNCTION buzz.forget_ephemeral(seconds double precision, bytes bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock(7094707117252804612) THEN
        RETURN;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    DELETE FROM buzz.ephemeral WHERE at < clock_timestamp() - make_interval(secs => seconds);
    DELETE FROM buzz.ephemeral WHERE n <= (
        SELECT n FROM (
            SELECT n, sum(octet_length(json)) OVER (ORDER BY n DESC) AS total FROM buzz.ephemeral
        ) AS newest WHERE total > bytes ORDER BY n DESC LIMIT 1);
END $$;

-- Events for people: SELECT * FROM buzz.readable ORDER BY seq DESC LIMIT 10.
CREATE VIEW buzz.readable AS
    SELECT seq, encode(id, 'hex') AS id, encode(pubkey, 'hex') AS pubkey,
           to_timestamp(-age) AS created_at, kind, expires, convert_from(json, 'UTF8') AS json
    FROM buzz.events;
