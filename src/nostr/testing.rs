//! Signed events for tests and benches, quickly. No part of the relay.

use secp256k1::{Keypair, schnorr};
use sha2::{Digest, Sha256};

use super::event::Event;

/// A key pair that signs. The same seed is the same author, in every run.
pub struct Author {
    pair: Keypair,
    pubkey: [u8; 32],
}

impl Author {
    /// The author of that number.
    ///
    /// # Panics
    /// Never in practice: a hash that is no secret key of the curve does not turn up.
    pub fn new(seed: u64) -> Self {
        let secret = Sha256::digest(format!("author {seed}"));
        let pair = Keypair::from_secret_bytes(secret.into()).expect("a secret key");
        let pubkey = pair.x_only_public_key().0.to_byte_array();
        Self { pair, pubkey }
    }

    /// The public key.
    pub fn pubkey(&self) -> &[u8; 32] {
        &self.pubkey
    }

    /// The public key in hex.
    pub fn pubkey_hex(&self) -> String {
        const_hex::encode(self.pubkey)
    }

    /// A valid event's JSON, normalized. Canonical escapes by serde_json: nothing of the code
    /// under test takes part.
    pub fn json<S: AsRef<str>>(
        &self,
        created_at: u64,
        kind: u16,
        tags: &[&[S]],
        content: &str,
    ) -> String {
        let tags: Vec<Vec<&str>> = tags
            .iter()
            .map(|tag| tag.iter().map(AsRef::as_ref).collect())
            .collect();
        let tags = serde_json::to_string(&tags).expect("strings");
        let content = serde_json::to_string(content).expect("a string");
        let pubkey = self.pubkey_hex();
        let canonical = format!("[0,\"{pubkey}\",{created_at},{kind},{tags},{content}]");
        let id: [u8; 32] = Sha256::digest(canonical).into();
        let sig = schnorr::sign_no_aux_rand(&id, &self.pair).to_byte_array();
        format!(
            "{{\"id\":\"{}\",\"pubkey\":\"{pubkey}\",\"created_at\":{created_at},\"kind\":{kind},\
             \"tags\":{tags},\"content\":{content},\"sig\":\"{}\"}}",
            const_hex::encode(id),
            const_hex::encode(sig),
        )
    }

    /// The same event of this author with another signature that is as good.
    ///
    /// # Panics
    /// If the text is no event's.
    pub fn signed_otherwise(&self, json: &str) -> String {
        let event = Event::parse(json).expect("an event");
        let sig = schnorr::sign_with_aux_rand(event.id(), &self.pair, &[7; 32]).to_byte_array();
        json.replace(&const_hex::encode(event.sig()), &const_hex::encode(sig))
    }

    /// A valid event.
    ///
    /// # Panics
    /// If an argument is out of the bounds of events.
    pub fn event<S: AsRef<str>>(
        &self,
        created_at: u64,
        kind: u16,
        tags: &[&[S]],
        content: &str,
    ) -> Event {
        Event::parse(&self.json(created_at, kind, tags, content)).expect("a valid event")
    }

    /// A valid text note without tags.
    ///
    /// # Panics
    /// As [`Author::event`].
    pub fn note(&self, created_at: u64, content: &str) -> Event {
        self.event::<&str>(created_at, 1, &[], content)
    }
}
