package idempotency

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"
)

var _ Inspector = (*Cache)(nil)

// Inspect implements [Inspector]. It always asks the other store, even about a record that the Cache has.
func (c *Cache) Inspect(ctx context.Context, key Key) (Entry, error) {
	inner, err := c.inspector()
	if err != nil {
		return Entry{}, err
	}
	return inner.Inspect(ctx, key)
}

// Forget implements [Inspector]. The Cache forgets the record, too. The Caches of other processes do not: they may
// replay it for up to CacheOptions.MaxAge, while the next request elsewhere executes the operation again.
func (c *Cache) Forget(ctx context.Context, entry Entry) error {
	inner, err := c.inspector()
	if err != nil {
		return err
	}
	defer c.forget(entry) // also after an error, which need not mean that nothing was removed
	return inner.Forget(ctx, entry)
}

// List implements [Inspector]. It lists the records of the other store.
func (c *Cache) List(ctx context.Context, request ListRequest) (Listing, error) {
	inner, err := c.inspector()
	if err != nil {
		return Listing{}, err
	}
	return inner.List(ctx, request)
}

func (c *Cache) inspector() (Inspector, error) {
	if c.faults != nil {
		return nil, c.faults
	}
	inner, ok := c.inner.(Inspector)
	if !ok {
		return nil, fmt.Errorf("idempotency: a %T is no Inspector: %w", c.inner, errors.ErrUnsupported)
	}
	return inner, nil
}

// forget removes the copy of a record, and keeps out what the other store was asked for before now. Most entries have no
// key, which is then found among all: their digests are made without the lock.
func (c *Cache) forget(entry Entry) {
	c.mu.Lock()
	c.forgot = time.Now()
	keys := append(make([]Key, 0, 1+len(c.entries)), entry.Key)
	for key := range c.entries {
		keys = append(keys, key)
	}
	c.mu.Unlock()
	key, found := keyOf(entry.Digest, keys)
	if !found {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if element := c.entries[key]; element != nil {
		c.remove(element)
	}
}

// keyOf returns the key that has a digest.
func keyOf(digest [sha256.Size]byte, keys []Key) (Key, bool) {
	for _, key := range keys {
		if key.Digest() == digest {
			return key, true
		}
	}
	return Key{}, false
}
