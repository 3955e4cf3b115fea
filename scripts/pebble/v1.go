package main

import (
	"errors"
	"runtime"
	"time"

	"github.com/cockroachdb/pebble"
	"github.com/cockroachdb/pebble/bloom"
)

type v1 struct{ db *pebble.DB }

// openV1 opens a database with the options of geth, except for the format version. It is the oldest one that version 2
// of Pebble opens, so that both versions can look up keys in the same tables.
func openV1(dir string, cacheBytes int64) (store, error) {
	cache := pebble.NewCache(cacheBytes)
	defer cache.Unref()
	options := &pebble.Options{
		Cache:                       cache,
		MaxOpenFiles:                100_000,
		MemTableSize:                uint64(cacheBytes / 4),
		MemTableStopWritesThreshold: 2,
		MaxConcurrentCompactions:    runtime.NumCPU,
		WALBytesPerSync:             5 * 100 << 10,
		FormatMajorVersion:          pebble.FormatFlushableIngest,
	}
	for level := 0; level < 7; level++ {
		options.Levels = append(options.Levels, pebble.LevelOptions{
			TargetFileSize: 2 << 20 << level,
			FilterPolicy:   bloom.FilterPolicy(10),
		})
	}
	options.Experimental.ReadSamplingMultiplier = -1
	db, err := pebble.Open(dir, options)
	return v1{db}, err
}

func (s v1) putBatch(first, count uint64, value func() []byte) error {
	batch := s.db.NewBatch()
	defer batch.Close()
	for record := first; record < first+count; record++ {
		if err := batch.Set(keyOf(record), value(), nil); err != nil {
			return err
		}
	}
	return batch.Commit(pebble.NoSync)
}

func (s v1) has(key []byte) (bool, error) {
	_, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, closer.Close()
}

func (s v1) counters() counters {
	m := s.db.Metrics()
	return counters{m.BlockCache.Hits, m.BlockCache.Misses, m.TableCache.Misses, m.Filter.Hits, m.Filter.Misses}
}

func (s v1) settle() error {
	if err := s.db.Flush(); err != nil {
		return err
	}
	for s.db.Metrics().Compact.NumInProgress > 0 {
		time.Sleep(time.Second)
	}
	return nil
}

func (s v1) levels() string { return s.db.Metrics().String() }

func (s v1) close() error { return s.db.Close() }
