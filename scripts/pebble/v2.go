package main

import (
	"errors"
	"runtime"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

type v2 struct{ db *pebble.DB }

// openV2 opens a database with the options of geth. The format version is the default: a new database has the oldest
// format that version 2 of Pebble supports.
func openV2(dir string, cacheBytes int64) (store, error) {
	cache := pebble.NewCache(cacheBytes)
	defer cache.Unref()
	options := &pebble.Options{
		Cache:                       cache,
		MaxOpenFiles:                100_000,
		MemTableSize:                uint64(cacheBytes / 4),
		MemTableStopWritesThreshold: 2,
		CompactionConcurrencyRange:  func() (int, int) { return 1, runtime.NumCPU() },
		WALBytesPerSync:             5 * 100 << 10,
	}
	for level := range options.Levels {
		options.TargetFileSizes[level] = 2 << 20 << level
		options.Levels[level].FilterPolicy = bloom.FilterPolicy(10)
	}
	options.Experimental.ReadSamplingMultiplier = -1
	db, err := pebble.Open(dir, options)
	return v2{db}, err
}

func (s v2) putBatch(first, count uint64, value func() []byte) error {
	batch := s.db.NewBatch()
	defer batch.Close()
	for record := first; record < first+count; record++ {
		if err := batch.Set(keyOf(record), value(), nil); err != nil {
			return err
		}
	}
	return batch.Commit(pebble.NoSync)
}

func (s v2) has(key []byte) (bool, error) {
	_, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, closer.Close()
}

func (s v2) counters() counters {
	m := s.db.Metrics()
	return counters{m.BlockCache.Hits, m.BlockCache.Misses, m.FileCache.Misses, m.Filter.Hits, m.Filter.Misses}
}

func (s v2) settle() error {
	if err := s.db.Flush(); err != nil {
		return err
	}
	for s.db.Metrics().Compact.NumInProgress > 0 {
		time.Sleep(time.Second)
	}
	return nil
}

func (s v2) levels() string { return s.db.Metrics().String() }

func (s v2) close() error { return s.db.Close() }
