// Command pebble measures how many blocks a point lookup of Pebble reads, by the size of the block cache.
//
// The protocol is that of a published study of Pebble's read path (QuarkChain, bench_kvdb, 2025): keys are hashes of
// 32 bytes, values have 110 random bytes, the options are those of the Ethereum client geth, 64 threads look up random
// existing keys, and a warm-up looks up 0.05 % of the records. Each block that is not in the block cache counts as an
// I/O, even if the page cache of the system contains it. Opening a table counts as an I/O too.
//
//	go mod tidy
//	go run . -version 1 -dir DIR -records 200000000 -caches 0.05,0.1,0.2,1,3
//
// DIR is created and filled if it does not exist. Version 2 also opens a directory that version 1 has filled; version 1
// cannot open a directory that version 2 has opened. The program prints CSV, or writes it to the file of -csv.
package main

import (
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	valueBytes = 110
	// Number of records in a batch of the load.
	batchRecords = 1000
	// Block cache and memtables of the load, in bytes.
	loadCacheBytes = 512 << 20
	// geth does not open a database with a smaller cache.
	minCacheBytes = 16 << 20
)

// counters are cumulative counts of an open database.
type counters struct {
	blockHits, blockMisses, tableMisses, filterHits, filterMisses int64
}

// store is a database of one of the versions of Pebble.
type store interface {
	// putBatch writes records with the numbers [first, first + count).
	putBatch(first, count uint64, value func() []byte) error
	// has looks up the record with this key.
	has(key []byte) (bool, error)
	counters() counters
	// settle flushes the memtable, and waits until no compaction runs.
	settle() error
	// levels returns a description of the levels.
	levels() string
	close() error
}

func keyOf(record uint64) []byte {
	var number [8]byte
	binary.BigEndian.PutUint64(number[:], record)
	hash := sha256.Sum256(number[:])
	return hash[:]
}

func main() {
	version := flag.Int("version", 1, "major version of Pebble: 1 or 2")
	dir := flag.String("dir", "", "directory of the database")
	records := flag.Uint64("records", 1_000_000, "number of records")
	reads := flag.Uint64("reads", 1_000_000, "lookups per cache size")
	threads := flag.Uint64("threads", 64, "threads that look up records")
	caches := flag.String("caches", "0.1,0.2,0.4,0.6,0.8,1,2,3", "cache sizes in percent of the database")
	csv := flag.String("csv", "", "file for the CSV instead of the standard output")
	flag.Parse()
	if *csv != "" {
		file, err := os.Create(*csv)
		if err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		os.Stdout = file
	}
	if err := run(*version, *dir, *records, *reads, *threads, strings.Split(*caches, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(version int, dir string, records, reads, threads uint64, caches []string) error {
	open := openV1
	switch {
	case dir == "" || records == 0 || reads < threads || threads == 0:
		return fmt.Errorf("-dir, -records, -threads and at least one read per thread are required")
	case version == 2:
		open = openV2
	case version != 1:
		return fmt.Errorf("-version %d: must be 1 or 2", version)
	}
	if _, err := os.Stat(dir); os.IsNotExist(err) {
		if err := load(open, dir, records); err != nil {
			return err
		}
	}
	bytes, err := tableBytes(dir)
	if err != nil {
		return err
	}
	fmt.Println("version,records,table_bytes,cache_bytes,cache_fraction,ios_per_get,hit_rate_overall,filter_true_negatives_per_get,gets_per_s")
	for _, percent := range caches {
		share, err := strconv.ParseFloat(percent, 64)
		if err != nil {
			return fmt.Errorf("-caches: %w", err)
		}
		cache := max(int64(share/100*float64(bytes)), minCacheBytes)
		if err := measure(open, dir, version, records, reads, threads, bytes, cache); err != nil {
			return err
		}
	}
	return nil
}

// load fills a new database, and waits for compactions.
func load(open func(string, int64) (store, error), dir string, records uint64) error {
	began := time.Now()
	db, err := open(dir, loadCacheBytes)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewSource(0))
	buffer := make([]byte, valueBytes)
	value := func() []byte { random.Read(buffer); return buffer }
	// Hashes of consecutive numbers are in random order.
	for first := uint64(0); first < records; first += batchRecords {
		if err := db.putBatch(first, min(batchRecords, records-first), value); err != nil {
			return err
		}
	}
	if err := db.settle(); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "load: %.0f s\n%s\n", time.Since(began).Seconds(), db.levels())
	return db.close()
}

// tableBytes returns the total size of the tables.
func tableBytes(dir string) (int64, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	var bytes int64
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			return 0, err
		}
		bytes += info.Size()
	}
	return bytes, err
}

func measure(
	open func(string, int64) (store, error), dir string, version int, records, reads, threads uint64,
	bytes, cache int64,
) error {
	db, err := open(dir, cache)
	if err != nil {
		return err
	}
	// The reads of compactions would count.
	if err := db.settle(); err != nil {
		return err
	}
	if err := lookUp(db, records, max(records/2000/threads, 1), threads, 1); err != nil {
		return err
	}
	before, began := db.counters(), time.Now()
	if err := lookUp(db, records, reads/threads, threads, 2); err != nil {
		return err
	}
	seconds, after := time.Since(began).Seconds(), db.counters()
	gets := float64(reads / threads * threads)
	hits := float64(after.blockHits - before.blockHits)
	misses := float64(after.blockMisses - before.blockMisses)
	opened := float64(after.tableMisses - before.tableMisses)
	fmt.Printf("%d,%d,%d,%d,%.6f,%.4f,%.4f,%.4f,%.0f\n", version, records, bytes, cache,
		float64(cache)/float64(bytes), (misses+opened)/gets, hits/(hits+misses),
		float64(after.filterHits-before.filterHits)/gets, gets/seconds)
	return db.close()
}

// lookUp looks up `each` random records with each thread. Every record must exist.
func lookUp(db store, records, each, threads, seed uint64) error {
	var group sync.WaitGroup
	errors := make([]error, threads)
	for thread := uint64(0); thread < threads; thread++ {
		group.Add(1)
		go func() {
			defer group.Done()
			// A source reduces its seed modulo 2³¹ − 1, so a shifted seed would repeat the keys of another thread.
			random := rand.New(rand.NewSource(int64(seed*1_000_003 + thread)))
			for i := uint64(0); i < each; i++ {
				record := random.Uint64() % records
				found, err := db.has(keyOf(record))
				if err == nil && !found {
					err = fmt.Errorf("record %d is missing", record)
				}
				if err != nil {
					errors[thread] = err
					return
				}
			}
		}()
	}
	group.Wait()
	for _, err := range errors {
		if err != nil {
			return err
		}
	}
	return nil
}
