import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.FileMetadata;
import org.apache.iceberg.Metrics;
import org.apache.iceberg.PartitionData;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Table;
import org.apache.iceberg.hadoop.HadoopTables;
import org.apache.iceberg.types.Conversions;
import org.apache.iceberg.types.Types;

/**
 * Writes the metadata of a table with the shape of Iceberg's PlanningBenchmark; the data files themselves do not exist.
 *
 * <p>Arguments: format version, table location, partitions, data files a partition, kind of deletes ("partition",
 * "dv" or "none"), the size of manifests in bytes, and the file that gets the result: one line
 * {@code <variant>=<metadata JSON>} for the table before its deletes ("plain") and after ("deletes").
 */
public final class PlanningWorkload {
  static final String PARTITION_COLUMN = "ss_ticket_number";
  static final String SORT_COLUMN = "ss_sold_date_sk";
  static final int SORT_VALUE = 5;
  static final int DELETES_PER_PARTITION = 50;
  private static final List<String> INT_COLUMNS =
      List.of(SORT_COLUMN, "ss_sold_time_sk", "ss_item_sk", PARTITION_COLUMN);
  private static final List<String> COLUMNS =
      List.of(
          SORT_COLUMN, "ss_sold_time_sk", "ss_item_sk", "ss_customer_sk", "ss_cdemo_sk", "ss_hdemo_sk", "ss_addr_sk",
          "ss_store_sk", "ss_promo_sk", PARTITION_COLUMN, "ss_quantity", "ss_wholesale_cost", "ss_list_price",
          "ss_sales_price", "ss_ext_discount_amt", "ss_ext_sales_price", "ss_ext_wholesale_cost", "ss_ext_list_price",
          "ss_ext_tax", "ss_coupon_amt", "ss_net_paid", "ss_net_paid_inc_tax", "ss_net_profit");
  private static final String LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  private static final int LONGEST_STRING = 50;
  private static final int TRUNCATED_STRING = 16;

  private final Table table;
  private final PartitionSpec spec;
  private final int filesPerPartition;

  private PlanningWorkload(Table table, int filesPerPartition) {
    this.table = table;
    this.spec = table.spec();
    this.filesPerPartition = filesPerPartition;
  }

  public static void main(String[] args) throws Exception {
    int formatVersion = Integer.parseInt(args[0]);
    int partitions = Integer.parseInt(args[2]);
    PlanningWorkload workload =
        new PlanningWorkload(create(formatVersion, args[1], args[5]), Integer.parseInt(args[3]));
    for (int partition = 0; partition < partitions; partition++) {
      workload.appendDataFiles(partition);
    }
    String plain = workload.metadataLocation();
    for (int partition = 0; partition < partitions && !args[4].equals("none"); partition++) {
      workload.appendDeletes(partition, args[4].equals("dv"));
    }
    Files.writeString(Path.of(args[6]), "plain=" + plain + "\ndeletes=" + workload.metadataLocation() + "\n");
  }

  private static Table create(int formatVersion, String location, String manifestBytes) {
    Types.NestedField[] fields = new Types.NestedField[COLUMNS.size()];
    for (int i = 0; i < fields.length; i++) {
      String name = COLUMNS.get(i);
      fields[i] =
          INT_COLUMNS.contains(name)
              ? Types.NestedField.optional(i + 1, name, Types.IntegerType.get())
              : Types.NestedField.optional(i + 1, name, Types.StringType.get());
    }
    Schema schema = new Schema(fields);
    Map<String, String> properties =
        Map.of(
            "format-version", Integer.toString(formatVersion),
            "commit.manifest-merge.enabled", "false",
            "commit.manifest.target-size-bytes", manifestBytes,
            "write.avro.compression-codec", "gzip",
            "write.delete.mode", "merge-on-read");
    PartitionSpec spec = PartitionSpec.builderFor(schema).identity(PARTITION_COLUMN).build();
    return new HadoopTables(new Configuration()).create(schema, spec, properties, location);
  }

  private String metadataLocation() {
    return ((BaseTable) table).operations().current().metadataFileLocation();
  }

  /** One append: the partition's files, and one more whose sort column is what the min/max filter looks for. */
  private void appendDataFiles(int partition) {
    AppendFiles append = table.newFastAppend();
    for (int file = 0; file < filesPerPartition; file++) {
      append.appendFile(dataFile(partition, file, Integer.MIN_VALUE));
    }
    append.appendFile(dataFile(partition, filesPerPartition, SORT_VALUE)).commit();
  }

  private void appendDeletes(int partition, boolean vectors) {
    long parent = table.currentSnapshot().snapshotId();
    RowDelta delta = table.newRowDelta().validateFromSnapshot(parent);
    int count = vectors ? filesPerPartition : DELETES_PER_PARTITION;
    for (int file = 0; file < count; file++) {
      delta.addDeletes(vectors ? deletionVector(partition, file) : positionDeletes(partition, file));
    }
    delta.commit();
  }

  private DataFile dataFile(int partition, int file, int sortValue) {
    SplittableRandom random = random(1, partition, file);
    return DataFiles.builder(spec)
        .withPath(dataLocation(partition, file))
        .withPartition(partitionTuple(partition))
        .withFileSizeInBytes(1 + random.nextInt(50_000))
        .withFormat(FileFormat.PARQUET)
        .withMetrics(dataMetrics(random, partition, sortValue))
        .build();
  }

  private DeleteFile positionDeletes(int partition, int file) {
    SplittableRandom random = random(2, partition, file);
    Map<Integer, Long> sizes = new HashMap<>();
    sizes.put(2147483546, 1_000_000L + random.nextInt(100_000));
    sizes.put(2147483545, 1_000_000L + random.nextInt(100_000));
    return FileMetadata.deleteFileBuilder(spec)
        .ofPositionDeletes()
        .withPath(location(partition, fileName(random, ".parquet")))
        .withPartition(partitionTuple(partition))
        .withFileSizeInBytes(1 + random.nextInt(50_000))
        .withFormat(FileFormat.PARQUET)
        .withMetrics(new Metrics(100_000L + random.nextInt(1000), sizes, null, null, null))
        .build();
  }

  private DeleteFile deletionVector(int partition, int file) {
    SplittableRandom random = random(3, partition, file);
    return FileMetadata.deleteFileBuilder(spec)
        .ofPositionDeletes()
        .withPath(location(partition, fileName(random, ".puffin")))
        .withFileSizeInBytes(1_010_000L + random.nextInt(50_000))
        .withFormat(FileFormat.PUFFIN)
        .withPartition(partitionTuple(partition))
        .withRecordCount(1 + random.nextInt(1000))
        .withReferencedDataFile(dataLocation(partition, file))
        .withContentOffset(random.nextInt(1_000_000))
        .withContentSizeInBytes(1 + random.nextInt(10_000))
        .build();
  }

  private PartitionData partitionTuple(int partition) {
    PartitionData tuple = new PartitionData(spec.partitionType());
    tuple.set(0, partition);
    return tuple;
  }

  private Metrics dataMetrics(SplittableRandom random, int partition, int sortValue) {
    Map<Integer, Long> sizes = new HashMap<>();
    Map<Integer, Long> values = new HashMap<>();
    Map<Integer, Long> nulls = new HashMap<>();
    Map<Integer, Long> nans = new HashMap<>();
    Map<Integer, ByteBuffer> lower = new HashMap<>();
    Map<Integer, ByteBuffer> upper = new HashMap<>();
    for (Types.NestedField field : table.schema().columns()) {
      int id = field.fieldId();
      sizes.put(id, 1_000_000L + random.nextInt(100_000));
      values.put(id, 100_000L + random.nextInt(100));
      nulls.put(id, (long) random.nextInt(5));
      nans.put(id, (long) random.nextInt(5));
      Comparable<?>[] bounds = bounds(random, field.name(), partition, sortValue);
      lower.put(id, Conversions.toByteBuffer(field.type(), bounds[0]));
      upper.put(id, Conversions.toByteBuffer(field.type(), bounds[1]));
    }
    return new Metrics(100_000L + random.nextInt(1000), sizes, values, nulls, nans, lower, upper);
  }

  /** The partition column's bounds are its value, so that a filter on it finds exactly the partition's files. */
  private static Comparable<?>[] bounds(SplittableRandom random, String column, int partition, int sortValue) {
    if (column.equals(PARTITION_COLUMN)) {
      return new Comparable<?>[] {partition, partition};
    } else if (column.equals(SORT_COLUMN)) {
      return new Comparable<?>[] {sortValue, sortValue};
    } else if (INT_COLUMNS.contains(column)) {
      int one = random.nextInt();
      int other = random.nextInt();
      return new Comparable<?>[] {Math.min(one, other), Math.max(one, other)};
    }
    String one = randomString(random);
    String other = randomString(random);
    return one.compareTo(other) <= 0 ? new Comparable<?>[] {one, other} : new Comparable<?>[] {other, one};
  }

  private static String randomString(SplittableRandom random) {
    int length = Math.min(random.nextInt(LONGEST_STRING), TRUNCATED_STRING);
    StringBuilder text = new StringBuilder(length);
    for (int i = 0; i < length; i++) {
      text.append(LETTERS.charAt(random.nextInt(LETTERS.length())));
    }
    return text.toString();
  }

  private String dataLocation(int partition, int file) {
    return location(partition, fileName(random(4, partition, file), ".parquet"));
  }

  private String location(int partition, String name) {
    return table.location() + "/data/" + PARTITION_COLUMN + "=" + partition + "/" + name;
  }

  private static String fileName(SplittableRandom random, String suffix) {
    UUID operation = new UUID(random.nextLong(), random.nextLong());
    return String.format(
        "%05d-%d-%s-%05d%s", random.nextInt(100_000), random.nextInt(100), operation, random.nextInt(1000), suffix);
  }

  /** Every file's values follow from its place, so that a table is the same each time it is made. */
  private static SplittableRandom random(long kind, long partition, long file) {
    return new SplittableRandom((kind << 60) | (partition << 32) | file);
  }
}
