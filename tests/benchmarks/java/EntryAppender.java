import java.io.IOException;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.Table;
import org.apache.iceberg.io.CloseableIterable;

/** Appends all data files of a table to another one, as a single commit of Iceberg's library. */
public final class EntryAppender {
  private EntryAppender() {}

  public static void append(Table source, Table target) throws IOException {
    AppendFiles append = target.newAppend();
    try (CloseableIterable<FileScanTask> tasks = source.newScan().includeColumnStats().planFiles()) {
      for (FileScanTask task : tasks) {
        append.appendFile(task.file());
      }
    }
    append.commit();
  }
}
