//! The access lists.

use super::*;

pub fn a_key_is_on_the_lists_it_was_put_on(store: impl TestStore) {
    let (one, two) = ([1; 32], [2; 32]);
    let edit = |keys: &[[u8; 32]], list, on| store.edit(keys, list, on);
    assert_eq!(edit(&[one, one], List::Banned, true), [true, false]);
    assert_eq!(edit(&[one], List::Banned, true), [false]);
    assert_eq!(edit(&[one], List::Members, true), [true]);
    assert_eq!(edit(&[one, two], List::Allowed, true), [true, true]);
    assert_eq!(edit(&[two, one], List::Allowed, false), [true, true]);
    assert_eq!(edit(&[two], List::Allowed, true), [true]);
    assert_eq!(edit(&[two], List::Members, false), [false]);
    let expected = Access {
        banned: true,
        allowed: false,
        member: true,
    };
    assert_eq!(store.access(&one), expected);
    assert_eq!(store.access(&[3; 32]), Access::default());
    let keys = |after| -> Vec<[u8; 32]> {
        store
            .entries(after)
            .into_iter()
            .map(|(key, _)| key)
            .collect()
    };
    assert_eq!(keys(None), [one, two]);
    assert_eq!(keys(Some(&one)), [two]);
    assert_eq!(keys(Some(&two)), [[0; 32]; 0]);
    assert_eq!(edit(&[two], List::Allowed, false), [true]);
    assert_eq!(keys(None), [one], "a key on no list has no entry");
}

pub fn pages_of_entries_join(store: impl TestStore) {
    let keys: Vec<[u8; 32]> = (0..300u64)
        .map(|n| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&n.to_be_bytes());
            key
        })
        .collect();
    store.edit(&keys, List::Members, true);
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let mut page = store.entries(after.as_ref());
        page.truncate(37);
        let Some((last, _)) = page.last() else { break };
        after = Some(*last);
        found.extend(page.iter().map(|(key, _)| *key));
    }
    assert!(found == keys);
}
