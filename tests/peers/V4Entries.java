package org.apache.iceberg;

import java.io.BufferedWriter;
import java.io.File;
import java.io.IOException;
import java.io.OutputStreamWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.ToIntFunction;
import java.util.function.ToLongFunction;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.mumbling.MumblingBitmaps;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.iceberg.types.Conversions;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.ByteBuffers;
import org.apache.iceberg.util.LocationUtil;

/**
 * Prints the entries of V4 manifests as Iceberg's own reader shows them. The reader is visible in this package only.
 *
 * <p>Reads a request from standard input, a JSON list of tables. Each has `metadata` (the path of its metadata.json),
 * `location` (to resolve relative locations), `files` (each with `path`, and what its entries inherit: `snapshot_id`,
 * `sequence_number` and `first_row_id`), and optionally `without`, a list of fields of the entry to leave out.
 *
 * <p>Prints a JSON object a line for each entry, with the index of its `table` and `file`; for a file that can't be
 * read, an object with the `error`. Values of columns are in hexadecimal digits, in Iceberg's binary form.
 */
public final class V4Entries {
  private static final ObjectMapper JSON = new ObjectMapper();
  // As many as a bitmap can hold.
  private static final int MAX_POSITIONS = 1 << 21;

  private V4Entries() {}

  public static void main(String[] arguments) throws IOException {
    JsonNode tables = JSON.readTree(System.in);
    try (BufferedWriter output =
        new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8))) {
      for (int index = 0; index < tables.size(); index++) {
        JsonNode table = tables.get(index);
        JsonNode metadata = JSON.readTree(new File(table.get("metadata").asText()));
        Schema schema = schema(metadata);
        Map<Integer, PartitionSpec> specs = specs(metadata, schema);
        JsonNode files = table.get("files");
        for (int file = 0; file < files.size(); file++) {
          for (Map<String, Object> entry : entries(table, files.get(file), schema, specs)) {
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("table", index);
            line.put("file", file);
            line.putAll(entry);
            output.write(JSON.writeValueAsString(line));
            output.newLine();
          }
        }
      }
    }
  }

  // TableMetadataParser refuses snapshots that have a root manifest.
  private static Schema schema(JsonNode metadata) {
    int current = metadata.get("current-schema-id").asInt();
    for (JsonNode node : metadata.get("schemas")) {
      Schema schema = SchemaParser.fromJson(node);
      if (schema.schemaId() == current) {
        return schema;
      }
    }
    throw new IllegalArgumentException("no current schema: " + current);
  }

  private static Map<Integer, PartitionSpec> specs(JsonNode metadata, Schema schema) {
    Map<Integer, PartitionSpec> specs = new LinkedHashMap<>();
    for (JsonNode node : metadata.get("partition-specs")) {
      PartitionSpec spec = PartitionSpecParser.fromJson(schema, node);
      specs.put(spec.specId(), spec);
    }
    return specs;
  }

  private static List<Map<String, Object>> entries(
      JsonNode table, JsonNode file, Schema schema, Map<Integer, PartitionSpec> specs) {
    String location = table.get("location").asText();
    String path = LocationUtil.resolveLocation(location, file.get("path").asText());
    Manifest manifest =
        new Manifest(
            path,
            localFile(path).length(),
            file.get("snapshot_id").asLong(),
            file.get("sequence_number").asLong(),
            file.hasNonNull("first_row_id") ? file.get("first_row_id").asLong() : null);
    List<Map<String, Object>> entries = new ArrayList<>();
    try (V4ManifestReader reader = reader(manifest, table, schema, specs)) {
      for (TrackedFile entry : reader) {
        entries.add(shown(entry));
      }
    } catch (Exception | Error error) {
      error.printStackTrace();
      Map<String, Object> failure = new LinkedHashMap<>();
      failure.put("error", path + ": " + error);
      return List.of(failure);
    }
    return entries;
  }

  private static V4ManifestReader reader(
      Manifest manifest, JsonNode table, Schema schema, Map<Integer, PartitionSpec> specs) {
    // By default, only the first hundred columns have statistics.
    String limit = String.valueOf(Integer.MAX_VALUE);
    MetricsConfig metrics =
        MetricsConfig.from(
            Map.of(TableProperties.METRICS_MAX_INFERRED_COLUMN_DEFAULTS, limit), schema, SortOrder.unsorted());
    V4ManifestReader.Builder builder =
        V4ManifestReader.builder(manifest, new LocalFiles(), schema, specs)
            .tableLocation(table.get("location").asText())
            .metricsConfig(metrics)
            .includeAll();
    if (table.hasNonNull("without")) {
      builder.select(fieldsWithout(table.get("without"), specs));
    }
    return builder.build();
  }

  private static List<String> fieldsWithout(JsonNode names, Map<Integer, PartitionSpec> specs) {
    List<String> fields = new ArrayList<>();
    Schema all = TrackedFile.schema(Partitioning.unionPartitionTypes(specs.values()), Types.StructType.of());
    for (Types.NestedField field : all.columns()) {
      fields.add(field.name());
    }
    for (JsonNode name : names) {
      fields.remove(name.asText());
    }
    return fields;
  }

  private static Map<String, Object> shown(TrackedFile entry) {
    Map<String, Object> fields = new LinkedHashMap<>();
    Tracking tracking = entry.tracking();
    fields.put("position", tracking.manifestPos());
    fields.put("status", tracking.status().toString());
    fields.put("snapshot_id", tracking.snapshotId());
    fields.put("sequence_number", tracking.dataSequenceNumber());
    fields.put("file_sequence_number", tracking.fileSequenceNumber());
    fields.put("dv_snapshot_id", tracking.dvSnapshotId());
    fields.put("first_row_id", tracking.firstRowId());
    fields.put("deleted_positions", positions(tracking.deletedPositions()));
    fields.put("replaced_positions", positions(tracking.replacedPositions()));
    fields.put("content_type", entry.contentType().toString());
    fields.put("format_version", entry.formatVersion());
    fields.put("location", entry.location());
    fields.put("file_format", entry.fileFormat().toString());
    fields.put("record_count", entry.recordCount());
    fields.put("file_size_in_bytes", entry.fileSizeInBytes());
    fields.put("spec_id", entry.specId());
    fields.put("partition", partition(entry.partition()));
    fields.put("sort_order_id", entry.sortOrderId());
    fields.put("split_offsets", entry.splitOffsets());
    fields.put("equality_ids", entry.equalityIds());
    fields.put("deletion_vector", vector(entry.deletionVector()));
    fields.put("manifest_info", info(entry.manifestInfo()));
    fields.put("key_metadata", hex(entry.keyMetadata()));
    fields.put("content_stats", stats(entry.contentStats()));
    return fields;
  }

  /** Returns values by the ids of their partition fields. */
  private static Map<String, Object> partition(StructLike partition) {
    if (!(partition instanceof PartitionData)) {
      return null;
    }
    Map<String, Object> values = new LinkedHashMap<>();
    List<Types.NestedField> fields = ((PartitionData) partition).getPartitionType().fields();
    for (int index = 0; index < fields.size(); index++) {
      Types.NestedField field = fields.get(index);
      Map<String, Object> value = new LinkedHashMap<>();
      value.put("type", field.type().toString());
      value.put("value", value(field.type(), partition.get(index, Object.class)));
      values.put(String.valueOf(field.fieldId()), value);
    }
    return values;
  }

  private static Map<String, Object> vector(DeletionVector vector) {
    if (vector == null) {
      return null;
    }
    Map<String, Object> fields = new LinkedHashMap<>();
    fields.put("location", vector.location());
    fields.put("offset", vector.offset());
    fields.put("size_in_bytes", vector.sizeInBytes());
    fields.put("cardinality", vector.cardinality());
    fields.put("key_metadata", hex(vector.keyMetadata()));
    return fields;
  }

  private static Map<String, Object> info(ManifestInfo info) {
    if (info == null) {
      return null;
    }
    Map<String, ToIntFunction<ManifestInfo>> files = new LinkedHashMap<>();
    files.put("added_files_count", ManifestInfo::addedFilesCount);
    files.put("existing_files_count", ManifestInfo::existingFilesCount);
    files.put("deleted_files_count", ManifestInfo::deletedFilesCount);
    files.put("replaced_files_count", ManifestInfo::replacedFilesCount);
    Map<String, ToLongFunction<ManifestInfo>> numbers = new LinkedHashMap<>();
    numbers.put("added_rows_count", ManifestInfo::addedRowsCount);
    numbers.put("existing_rows_count", ManifestInfo::existingRowsCount);
    numbers.put("deleted_rows_count", ManifestInfo::deletedRowsCount);
    numbers.put("replaced_rows_count", ManifestInfo::replacedRowsCount);
    numbers.put("min_sequence_number", ManifestInfo::minSequenceNumber);
    Map<String, Object> fields = new LinkedHashMap<>();
    files.forEach((name, getter) -> fields.put(name, getter.applyAsInt(info)));
    numbers.forEach((name, getter) -> fields.put(name, getter.applyAsLong(info)));
    fields.put("dv", positions(info.manifestDeletionVector()));
    return fields;
  }

  /** Returns what is known of each column, by its id. */
  private static Map<String, Object> stats(ContentStats stats) {
    if (stats == null) {
      return null;
    }
    Map<String, Object> columns = new LinkedHashMap<>();
    for (FieldStats<?> column : stats.fieldStats()) {
      if (column != null) {
        Map<String, Object> fields = new LinkedHashMap<>();
        Type type = column.type().fieldType("lower_bound");
        fields.put("type", type == null ? null : type.toString());
        fields.put("lower_bound", value(type, column.lowerBound()));
        fields.put("upper_bound", value(type, column.upperBound()));
        fields.put("tight_bounds", column.tightBounds());
        fields.put("value_count", column.hasValueCount() ? column.valueCount() : null);
        fields.put("null_value_count", column.hasNullValueCount() ? column.nullValueCount() : null);
        fields.put("nan_value_count", column.hasNanValueCount() ? column.nanValueCount() : null);
        fields.put("avg_value_size_in_bytes", column.avgValueSizeInBytes());
        columns.put(String.valueOf(column.fieldId()), fields);
      }
    }
    return columns;
  }

  /** Returns a value in Iceberg's binary form; the fields of a struct by their names, as bounds of geometries are. */
  private static Object value(Type type, Object value) {
    if (value == null || type == null) {
      return null;
    }
    if (type.isPrimitiveType()) {
      return hex(Conversions.toByteBuffer(type, value));
    }
    Map<String, Object> fields = new LinkedHashMap<>();
    List<Types.NestedField> types = type.asStructType().fields();
    for (int index = 0; index < types.size(); index++) {
      Type child = types.get(index).type();
      fields.put(types.get(index).name(), value(child, ((StructLike) value).get(index, Object.class)));
    }
    return fields;
  }

  private static List<Integer> positions(ByteBuffer bitmap) {
    return bitmap == null ? null : positions(MumblingBitmaps.read(bitmap));
  }

  private static List<Integer> positions(ManifestBitmap bitmap) {
    if (bitmap == null) {
      return null;
    }
    List<Integer> positions = new ArrayList<>();
    for (int position = 0; position < MAX_POSITIONS && positions.size() < bitmap.cardinality(); position++) {
      if (bitmap.isSet(position)) {
        positions.add(position);
      }
    }
    if (positions.size() != bitmap.cardinality()) {
      throw new IllegalArgumentException("a bitmap of " + bitmap.cardinality() + " has " + positions);
    }
    return positions;
  }

  private static String hex(ByteBuffer data) {
    return data == null ? null : HexFormat.of().formatHex(ByteBuffers.toByteArray(data));
  }

  private static File localFile(String location) {
    return new File(location.replaceFirst("^file:/+", "/"));
  }

  /** The manifest of the entries that inherit from it. */
  private record Manifest(String path, long length, Long snapshotId, long sequenceNumber, Long firstRowId)
      implements ManifestFile {
    @Override
    public int formatVersion() {
      return 4;
    }

    @Override
    public int partitionSpecId() {
      return 0;
    }

    // The reader refuses manifests of deletes.
    @Override
    public ManifestContent content() {
      return ManifestContent.DATA;
    }

    @Override
    public long minSequenceNumber() {
      return 0;
    }

    @Override
    public Integer addedFilesCount() {
      return null;
    }

    @Override
    public Long addedRowsCount() {
      return null;
    }

    @Override
    public Integer existingFilesCount() {
      return null;
    }

    @Override
    public Long existingRowsCount() {
      return null;
    }

    @Override
    public Integer deletedFilesCount() {
      return null;
    }

    @Override
    public Long deletedRowsCount() {
      return null;
    }

    @Override
    public List<PartitionFieldSummary> partitions() {
      return null;
    }

    @Override
    public ManifestFile copy() {
      return this;
    }
  }

  /** Files of this machine, to be read only. */
  private static final class LocalFiles implements FileIO {
    @Override
    public InputFile newInputFile(String location) {
      return Files.localInput(localFile(location));
    }

    @Override
    public OutputFile newOutputFile(String location) {
      throw new UnsupportedOperationException(location);
    }

    @Override
    public void deleteFile(String location) {
      throw new UnsupportedOperationException(location);
    }
  }
}
